//! Selection of the tests that run in a machine. Its processor is emulated: a test that takes a
//! minute on a real one takes many there, so tests are chosen for what they show of the kernel.

use super::package::Kernel;
use crate::image::Arch;

/// A program of tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Program {
    /// tests/kernel.
    Kernel,
    /// tests/node.
    Node,
    /// tests/cluster, with an API server outside of the machine.
    Cluster,
    /// tests/install, the same with kubelet and containerd in a machine of its own.
    Install,
}

impl Program {
    pub(crate) const ALL: [Self; 4] = [Self::Kernel, Self::Node, Self::Cluster, Self::Install];

    /// The programs of one machine.
    pub(crate) fn of_machine(with_kubernetes: bool) -> impl Iterator<Item = Self> {
        let fits = move |program: &Self| (*program == Self::Install) == with_kubernetes;
        Self::ALL.into_iter().filter(fits)
    }

    /// Name of the test target.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Node => "node",
            Self::Cluster => "cluster",
            Self::Install => "install",
        }
    }

    /// Whether the API server of its tests runs outside of the machine.
    pub(crate) fn asks_api_server(self) -> bool {
        matches!(self, Self::Cluster | Self::Install)
    }

    /// Tests at a time. The guest has two processors; of two agents that start at once neither was
    /// ready within minutes.
    pub(crate) fn threads(self) -> u8 {
        match self {
            Self::Kernel => 2,
            Self::Node | Self::Cluster | Self::Install => 1,
        }
    }

    /// Chosen tests of the program.
    pub(crate) fn chosen(self) -> &'static [Choice] {
        match self {
            Self::Kernel => &KERNEL,
            Self::Node => &NODE,
            Self::Cluster => &CLUSTER,
            Self::Install => &INSTALL,
        }
    }
}

/// Tests by a part of their names, and what they show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) tests: &'static str,
    pub(crate) shows: &'static str,
    /// The series of kernels that it runs on; all, where there is none.
    pub(crate) series: Option<&'static str>,
    /// Whether it runs on arm64 too.
    pub(crate) on_arm64: bool,
}

impl Choice {
    /// Whether it runs on this kernel.
    pub(crate) fn is_for(&self, kernel: Kernel) -> bool {
        let of = |series| kernel.name.split('-').next() == Some(series);
        self.series.is_none_or(of) && (self.on_arm64 || kernel.arch != Arch::Arm64)
    }

    /// The kernels that it runs on, in words.
    pub(crate) fn kernels(&self) -> String {
        let series = self.series.unwrap_or("all");
        match self.on_arm64 {
            true => series.to_owned(),
            false => format!("{series}, x86-64"),
        }
    }

    /// Not on arm64: the code that it tries is the same for each architecture.
    const fn on_x86_64(self) -> Self {
        Self {
            on_arm64: false,
            ..self
        }
    }

    /// On this series alone: what differs between kernels is tried where it differs, the rest where
    /// there is time.
    const fn on(self, series: &'static str) -> Self {
        Self {
            series: Some(series),
            ..self
        }
    }
}

const fn choice(tests: &'static str, shows: &'static str) -> Choice {
    Choice {
        tests,
        shows,
        series: None,
        on_arm64: true,
    }
}

/// Each loads the observer, which the verifier takes seconds for there.
const KERNEL: [Choice; 6] = [
    choice(
        "the_empty_program_passes",
        "programs run on packets (BPF_PROG_TEST_RUN)",
    ),
    choice(
        "a_connection_to_the_field",
        "what the programs write into the maps",
    ),
    choice(
        "a_plan_of_all_kinds",
        "the agent's writes, many elements at a time",
    ),
    choice("sampler::", "the agent's reads, many elements at a time"),
    choice(
        "near_ends_stamp_and_pass::family_1",
        "the sentinel's programs pass and stamp the sentinel's packets",
    ),
    choice(
        "strangers::strangers::family_1",
        "and leave all other packets alone",
    ),
];

/// Half a minute to two of an emulated processor each, but for the refusals. Twins are in the test with
/// kube-proxy.
const NODE: [Choice; 14] = [
    choice(
        "a_flushed_chain_is_503_until_it_is_mended",
        "proven on traffic; 503 after a fault, 200 after its repair",
    ),
    choice(
        "every_path_is_proven_and_each_connection_counted_once::case_2",
        "kube-proxy's rules for iptables, by iptables-legacy: each path is proven, each connection counted once",
    )
    .on_x86_64(),
    choice(
        "every_path_is_proven_and_each_connection_counted_once::case_3",
        "the same by iptables-nft",
    )
    .on_x86_64(),
    // Filters of clsact go with their agent.
    choice(
        "a_restart_misses_no_connection",
        "two restarts: every connection of 75 a second is counted once",
    )
    .on("6.12")
    .on_x86_64(),
    choice(
        "a_killed_agent_leaves_the_node_as_it_was",
        "pins: after a kill the programs go on counting, and the next agent takes over the same links",
    )
    .on("6.12")
    .on_x86_64(),
    choice(
        "another_version_watches_until_all_is_attached",
        "an upgrade without a gap: links of another version stay until all of the new one are attached",
    )
    .on("6.12")
    .on_x86_64(),
    choice(
        "upgrades_lose_no_answer::case_1",
        "rollouts while four clients ask at the healthz port: every one is answered",
    )
    .on("6.12")
    .on_x86_64(),
    choice(
        "upgrades_lose_no_answer::case_2",
        "the same with clsact filters",
    )
    .on("6.1")
    .on_x86_64(),
    choice(
        "questions_are_answered",
        "passive UDP: DNS questions and their answers are counted and timed",
    )
    .on_x86_64(),
    choice(
        "a_broken_node_stays_broken_over_a_kill",
        "a broken node is never 200 after its agent is killed and started again",
    ),
    choice(
        "outsiders_get_ours_and_the_node_the_owners",
        "the healthz port beside its owner, by sk_lookup",
    )
    .on("6.12"),
    // Nowhere else: the clock is everybody's.
    choice(
        "a_clock_that_is_set",
        "a clock that is set forward and back causes no fault, and hides none",
    )
    .on("6.12")
    .on_x86_64(),
    // Nowhere else: the limit is everybody's.
    choice(
        "a_full_conntrack_table",
        "a full table of connections is named and stays 503 until there is room",
    )
    .on("6.12")
    .on_x86_64(),
    choice(
        "hardening_refusals::",
        "seccomp filters and Landlock's rules, by trying them",
    ),
];

/// Each has the API server to itself, and leaves its objects there: one for each kernel.
const CLUSTER: [Choice; 2] = [
    choice(
        "ipvs_mode",
        "a real kube-proxy in ipvs mode: proven, 503 when its table is wiped and 200 when it is back; one dead server and one emptied Service are no 503",
    )
    .on("6.1")
    .on_x86_64(),
    choice(
        "a_held_lock_shows_once_an_endpoint_is_replaced",
        "a real kube-proxy in iptables mode, by iptables-legacy: proven, and 503 when another program's lock keeps it from following the API",
    )
    .on("6.12")
    .on_x86_64(),
];

/// A quarter of an hour of an emulated processor.
const INSTALL: [Choice; 1] = [choice(
    "a_node_that_lost_its_rules_is_503",
    "kubelet, containerd and kube-proxy on cgroup v2, pathproof as shipped: proven, 503 after a fault, 200 after its repair",
)
.on("6.12")
.on_x86_64()];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::package;

    fn kernel(name: &str) -> Kernel {
        package::chosen(&[name.to_owned()]).unwrap()[0]
    }

    #[test]
    fn a_series_is_the_whole_number_of_a_kernel() {
        let one = choice("a", "b").on("6.1");
        assert!(one.is_for(kernel("6.1-cloud")) && one.is_for(kernel("6.1")));
        assert!(!one.is_for(kernel("6.12-cloud")));
        assert!(choice("a", "b").is_for(kernel("6.12")));
    }

    #[test]
    fn a_choice_may_leave_arm64_out() {
        let all = choice("a", "b").on("6.12");
        let (here, there) = (kernel("6.12-cloud"), kernel("6.12-cloud-arm64"));
        assert!(all.is_for(here) && all.is_for(there));
        assert!(all.on_x86_64().is_for(here) && !all.on_x86_64().is_for(there));
        assert_eq!(all.on_x86_64().kernels(), "6.12, x86-64");
    }
}
