//! Selection of the tests that run in a machine, from the table in selection.txt.

use super::package::Kernel;
use crate::image::Arch;
use crate::run;

const TABLE: &str = include_str!("selection.txt");

/// The test programs; those with an API server outside of the machine come last. tests/install has
/// a separate machine, with kubelet and containerd.
pub(super) const PROGRAMS: [&str; 4] = ["kernel", "node", "cluster", "install"];

/// Whether the API server of a program's tests runs outside of the machine.
pub(super) fn asks_api_server(program: &str) -> bool {
    matches!(program, "cluster" | "install")
}

/// Selected tests of a program.
pub(super) fn chosen(program: &str) -> impl Iterator<Item = Choice> {
    Choice::all().filter(move |choice| choice.program == program)
}

/// A row of the table: tests of a program, named by a part of their names.
#[derive(Debug, Clone, Copy)]
pub(super) struct Choice {
    pub(super) program: &'static str,
    pub(super) tests: &'static str,
    /// Sentence about the kernels that they run on.
    pub(super) kernels: &'static str,
}

impl Choice {
    pub(super) fn all() -> impl Iterator<Item = Self> {
        run::rows(TABLE).map(|row| {
            let [program, tests, kernels, _shows] = row[..] else {
                panic!("selection.txt: {row:?} is not PROGRAM | TESTS | KERNELS | WHAT THEY SHOW");
            };
            Self {
                program,
                tests,
                kernels,
            }
        })
    }

    pub(super) fn is_for(self, kernel: Kernel) -> bool {
        let (series, on_x86_64) = match self.kernels.strip_suffix(", x86-64") {
            Some(series) => (series, true),
            None => (self.kernels, false),
        };
        let of_series = series == "all" || kernel.name.split('-').next() == Some(series);
        of_series && !(on_x86_64 && kernel.arch == Arch::Arm64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::package;

    fn is_for(kernels: &'static str, kernel: &str) -> bool {
        let choice = Choice {
            kernels,
            ..Choice::all().next().unwrap()
        };
        choice.is_for(package::chosen(&[kernel.to_owned()]).unwrap()[0])
    }

    #[test]
    fn a_series_is_the_whole_number_of_a_kernel() {
        assert!(is_for("6.1", "6.1-cloud") && is_for("6.1", "6.1"));
        assert!(!is_for("6.1", "6.12-cloud"));
        assert!(is_for("all", "6.12"));
    }

    #[test]
    fn a_choice_may_leave_arm64_out() {
        let (here, there) = ("6.12-cloud", "6.12-cloud-arm64");
        assert!(is_for("6.12", here) && is_for("6.12", there));
        assert!(is_for("6.12, x86-64", here) && !is_for("6.12, x86-64", there));
    }

    #[test]
    fn every_row_is_of_a_program_and_of_a_series() {
        for Choice {
            program, kernels, ..
        } in Choice::all()
        {
            let series = kernels.trim_end_matches(", x86-64");
            let tried = ["all", "6.1", "6.12"].contains(&series);
            assert!(
                PROGRAMS.contains(&program) && tried,
                "{program} | {kernels}"
            );
        }
    }
}
