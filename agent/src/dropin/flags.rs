//! The flags of kube-proxy 1.36, on one page: what each is called, whether it takes a value, and
//! what it means here. A test on a real kube-proxy compares this table with its `--help`.

/// A flag of kube-proxy.
#[derive(Debug, PartialEq, Eq)]
pub struct Flag {
    /// Without its dashes.
    pub name: &'static str,
    /// What kind of value it takes, as `--help` prints it. Nothing for those that can stand alone.
    pub value: Option<&'static str>,
    /// What it means here; nothing for those that are only accepted.
    pub part: Option<Part>,
    /// Deprecated: accepted, and not in `--help`.
    pub hidden: bool,
}

/// What a flag means here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// Removes kube-proxy's rules and ends.
    Cleanup,
    /// A KubeProxyConfiguration.
    Config,
    /// Where /healthz and /livez are served.
    Healthz,
    /// Port of it, where the address has none; 0 serves nothing.
    HealthzPort,
    /// Shows the flags and ends.
    Help,
    /// Name of the Node.
    Hostname,
    /// Prepares what kube-proxy needs and ends: nothing, here.
    InitOnly,
    /// How the API server is reached.
    Kubeconfig,
    /// Format of the log.
    LogFormat,
    /// URL of the API server.
    Master,
    /// Where the admin port is served.
    Metrics,
    /// Port of it, where the address has none; 0 serves nothing.
    MetricsPort,
    /// How much is logged.
    Verbosity,
    /// Shows the version and ends.
    Version,
    /// Writes kube-proxy's configuration and ends: refused here.
    WriteConfig,
}

impl Flag {
    /// The flag of that name. As kube-proxy has it, underscores may stand for dashes.
    pub fn named(name: &str) -> Option<&'static Self> {
        let dashed = |byte: u8| if byte == b'_' { b'-' } else { byte };
        let is = |flag: &&Self| flag.name.bytes().eq(name.bytes().map(dashed));
        FLAGS.iter().find(is)
    }

    /// The flag of that letter, after a single dash.
    pub fn lettered(letter: char) -> Option<&'static Self> {
        match letter {
            'h' => Self::named("help"),
            'v' => Self::named("v"),
            _ => None,
        }
    }

    /// As `--help` prints it.
    pub fn usage(&self) -> String {
        let letter = match self.part {
            Some(Part::Help) => "-h, ",
            Some(Part::Verbosity) => "-v, ",
            _ => "    ",
        };
        let value = self.value.map(|kind| format!(" {kind}"));
        format!("  {letter}--{}{}", self.name, value.unwrap_or_default())
    }
}

const fn flag(name: &'static str, value: &'static str, part: Option<Part>) -> Flag {
    // A word for the kind, but where it can stand alone.
    let value = if value.is_empty() { None } else { Some(value) };
    Flag {
        name,
        value,
        part,
        hidden: false,
    }
}

const fn hidden(name: &'static str, value: &'static str, part: Part) -> Flag {
    Flag {
        hidden: true,
        ..flag(name, value, Some(part))
    }
}

/// All of them, by name.
pub const FLAGS: &[Flag] = &[
    flag("bind-address", "ip", None),
    flag("bind-address-hard-fail", "", None),
    flag("boot-id-file", "string", None),
    flag("cleanup", "", Some(Part::Cleanup)),
    flag("cluster-cidr", "string", None),
    flag("config", "string", Some(Part::Config)),
    flag("config-sync-period", "duration", None),
    flag("conntrack-max-per-core", "int32", None),
    flag("conntrack-min", "int32", None),
    flag("conntrack-tcp-be-liberal", "", None),
    flag("conntrack-tcp-timeout-close-wait", "duration", None),
    flag("conntrack-tcp-timeout-established", "duration", None),
    flag("conntrack-udp-timeout", "duration", None),
    flag("conntrack-udp-timeout-stream", "duration", None),
    flag("detect-local-mode", "LocalMode", None),
    flag("feature-gates", "mapStringBool", None),
    flag("healthz-bind-address", "ipport", Some(Part::Healthz)),
    hidden("healthz-port", "int32", Part::HealthzPort),
    flag("help", "", Some(Part::Help)),
    flag("hostname-override", "string", Some(Part::Hostname)),
    flag("init-only", "", Some(Part::InitOnly)),
    flag("iptables-localhost-nodeports", "", None),
    flag("iptables-masquerade-bit", "int32", None),
    flag("iptables-min-sync-period", "duration", None),
    flag("iptables-sync-period", "duration", None),
    flag("ipvs-exclude-cidrs", "strings", None),
    flag("ipvs-min-sync-period", "duration", None),
    flag("ipvs-scheduler", "string", None),
    flag("ipvs-strict-arp", "", None),
    flag("ipvs-sync-period", "duration", None),
    flag("ipvs-tcp-timeout", "duration", None),
    flag("ipvs-tcpfin-timeout", "duration", None),
    flag("ipvs-udp-timeout", "duration", None),
    flag("kube-api-burst", "int32", None),
    flag("kube-api-content-type", "string", None),
    flag("kube-api-qps", "float32", None),
    flag("kubeconfig", "string", Some(Part::Kubeconfig)),
    flag("log-flush-frequency", "duration", None),
    flag("log-json-info-buffer-size", "quantity", None),
    flag("log-json-split-stream", "", None),
    flag("log-text-info-buffer-size", "quantity", None),
    flag("log-text-split-stream", "", None),
    flag("logging-format", "string", Some(Part::LogFormat)),
    flag("machine-id-file", "string", None),
    flag("masquerade-all", "", None),
    flag("master", "string", Some(Part::Master)),
    flag("metrics-bind-address", "ipport", Some(Part::Metrics)),
    hidden("metrics-port", "int32", Part::MetricsPort),
    flag("nodeport-addresses", "strings", None),
    flag("oom-score-adj", "int32", None),
    flag("pod-bridge-interface", "string", None),
    flag("pod-interface-name-prefix", "string", None),
    flag("profiling", "", None),
    flag("proxy-mode", "ProxyMode", None),
    flag("show-hidden-metrics-for-version", "string", None),
    flag("v", "Level", Some(Part::Verbosity)),
    flag("version", "", Some(Part::Version)),
    flag("vmodule", "pattern=N,...", None),
    flag("write-config-to", "string", Some(Part::WriteConfig)),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_order_and_each_is_found() {
        assert!(FLAGS.is_sorted_by(|a, b| a.name < b.name));
        for flag in FLAGS {
            assert_eq!(Flag::named(flag.name), Some(flag));
            assert_eq!(Flag::named(&flag.name.replace('-', "_")), Some(flag));
        }
        assert_eq!(Flag::named("nonsense"), None);
    }
}
