use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use clap::Parser;
use pathproof_judge::damping::DWELL_DEFAULT;
use pathproof_judge::verdict::CountedFamilies;
use pathproof_rotator::rotation;
use rstest::rstest;

use super::*;
use crate::http::AllowList;
use crate::lifecycle::tests::CapturedLog;

fn around() -> Surroundings {
    Surroundings {
        node_name: None,
        hostname: Some("Worker-1\n".to_owned()),
        in_cluster: false,
    }
}

/// Parses a command line. The result depends on the environment if a PATHPROOF_* variable is set.
fn resolve(options: &[&str]) -> Result<Config, String> {
    resolve_in(&[&["--manifests=/cluster"], options].concat(), &around())
}

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    run: RunArgs,
}

fn resolve_in(options: &[&str], around: &Surroundings) -> Result<Config, String> {
    let line = Line::try_parse_from(["pathproof"].iter().chain(options));
    let line = line.map_err(|error| error.to_string())?;
    Config::resolve(&line.run, around).map_err(|error| error.to_string())
}

/// The log line is for people, so it must not contain Rust's Debug format.
#[test]
fn the_configuration_is_logged_in_words() {
    let log = CapturedLog::begin();
    resolve(&["--node-name=node-1"]).unwrap().log();
    let text = log.end();
    let expected = "configuration node=node-1 cluster_view=folder /cluster healthz=\"all addresses, port 10256\" \
                    admin=\"127.0.0.1:19256\" audit_only=true enforce_nodes=null unknown_is_503=false families=\"used\" fleet_brake=20 flap_dwell=10s \
                    sentinel=\"pathproof/pathproof-sentinel\"\n";
    assert!(text.ends_with(expected), "{text}");
}

#[test]
fn defaults() {
    let config = resolve(&[]).unwrap();
    assert_eq!(config.healthz.address, Some(BindAddress::Everywhere(10256)));
    assert!(config.healthz.healthz_allow_cidr.is_empty());
    let loopback: SocketAddr = "127.0.0.1:19256".parse().unwrap();
    assert_eq!(config.admin.address, Some(BindAddress::One(loopback)));
    assert_eq!(config.healthz.flap_dwell, DWELL_DEFAULT);
    assert_eq!(config.healthz.families, CountedFamilies::Used);
    assert_eq!(config.healthz.port_takeover, PortTakeover::Steer);
    assert_eq!(config.healthz.shutdown_grace, Duration::from_secs(5));
    assert_eq!(
        config.kept.pin_dir.as_deref(),
        Some(Path::new("/sys/fs/bpf/pathproof"))
    );
    assert_eq!(&*config.node_name, "worker-1");
}

#[rstest]
#[case("0.0.0.0", "all addresses, port 10256")]
#[case("0.0.0.0:1", "all addresses, port 1")]
#[case("[::]", "all addresses, port 10256")]
#[case("::", "all addresses, port 10256")]
#[case("[::]:7", "all addresses, port 7")]
#[case(":9", "all addresses, port 9")]
#[case("10.0.0.1", "10.0.0.1:10256")]
#[case("10.0.0.1:0", "10.0.0.1:0")]
#[case("2001:db8::1", "[2001:db8::1]:10256")]
#[case("[2001:db8::1]:80", "[2001:db8::1]:80")]
#[case("::ffff:10.0.0.1", "10.0.0.1:10256")]
fn addresses(#[case] said: &str, #[case] meant: &str) {
    let config = resolve(&["--healthz-bind-address", said]).unwrap();
    assert_eq!(config.healthz.address.unwrap().to_string(), meant);
}

#[rstest]
#[case("--healthz-bind-address=localhost:1", "localhost")]
#[case("--healthz-bind-address=10256", "0.0.0.0:10256")]
#[case("--healthz-bind-address=", ":PORT")]
#[case("--healthz-bind-address=1.2.3.4:99999", "99999")]
#[case("--admin-bind-address=:x", "0.0.0.0:19256")]
#[case("--healthz-allow-cidr=10.0.0.0/33", "10.0.0.0/33")]
#[case("--admin-allow-cidr=10.0.0.0/8,banana", "banana")]
#[case("--interface-include=eth[0-9]", "only * ")]
#[case("--interface-exclude=a/b", "a/b")]
#[case("--terminating-taint=spott", "did you mean \"spot\"")]
#[case("--terminating-taint=a=b:NoSchedule", "only the key")]
#[case("--terminating-condition=Ready=no", "True, False or Unknown")]
#[case("--terminating-label=a/b/c=d", "one slash before it")]
#[case("--leaving-brake=101", "from 0 to 100")]
#[case("--log-filter=pathproof=loud", "error, warn, info, debug, trace")]
#[case("--flap-dwell=10", "10s")]
#[case("--flap-dwell=-1s", "between 0 and 5m")]
#[case("--flap-dwell=6m", "between 0 and 5m")]
#[case("--shutdown-grace=5", "for example 10s")]
#[case("--shutdown-grace=11m", "between 0 and 10m")]
#[case("--pin-dir=relative", "absolute")]
#[case("--state-dir=x", "or none")]
#[case("--node-name=Not_A_Name", "Not_A_Name")]
#[case("--sentinel-service=sentinel", "NAMESPACE/NAME")]
#[case("--sentinel-devices=much-too-long-a-name", "1 to 12")]
#[case("--sentinel-devices=a/b", "a/b")]
#[case("--sentinel-client-address=198.18.0.1", "one IPv4 and one IPv6")]
#[case(
    "--sentinel-endpoint-address=198.18.0.2,198.18.0.3",
    "second address of its family"
)]
#[case("--sentinel-pod-address=127.0.0.1", "not forwarded")]
#[case("--sentinel-pod-address=198.18.0.1", "must differ")]
#[case("--sentinel-devices=-a", "-a")]
#[case("--sentinel-devices=", "1 to 12")]
#[case("--sentinel-pod-address=0.1.2.3", "not forwarded")]
#[case("--sentinel-pod-address=169.254.1.1", "not forwarded")]
#[case("--sentinel-pod-address=255.255.255.255", "not forwarded")]
#[case("--sentinel-pod-address=fe80::1", "not forwarded")]
#[case("--sentinel-pod-address=ff02::1", "not forwarded")]
#[case("--sentinel-pod-address=::ffff:198.18.0.1", "not forwarded")]
#[case("--sentinel-pod-address=pod", "is not an IP")]
fn an_error_names_setting_value_and_remedy(#[case] option: &str, #[case] expected: &str) {
    let message = resolve(&[option]).unwrap_err();
    let (setting, value) = option.split_once('=').unwrap();
    let value = value.rsplit(',').next().unwrap();
    for part in [setting, value, expected] {
        assert!(message.contains(part), "{message}");
    }
}

#[rstest]
#[case("0", 0)]
#[case("250ms", 250)]
#[case("1m30s", 90_000)]
#[case("5m", 300_000)]
fn dwells(#[case] said: &str, #[case] millis: u64) {
    let config = resolve(&["--flap-dwell", said]).unwrap();
    assert_eq!(config.healthz.flap_dwell, Duration::from_millis(millis));
}

#[test]
fn lists_by_comma_and_by_repetition() {
    let config = resolve(&[
        "--healthz-allow-cidr=10.0.0.0/8,fd00::/8",
        "--healthz-allow-cidr",
        "192.0.2.7",
        "--interface-include=eth*,bond?",
    ]);
    let config = config.unwrap();
    let allow = AllowList::new(config.healthz.healthz_allow_cidr.into_iter().flatten());
    let ranges = ["10.0.0.0/8", "192.0.2.7/32", "fd00::/8"].map(|range| range.parse().unwrap());
    assert_eq!(allow, AllowList::new(ranges));
    assert_eq!(config.observer.interface_include.len(), 2);
}

#[test]
fn an_exclusion_wins() {
    let options = ["--interface-include=eth*,veth*", "--interface-exclude=eth9"];
    let observer = resolve(&options).unwrap().observer;
    assert!(observer.watches("eth0"));
    assert!(!observer.watches("eth9"));
    assert!(!observer.watches("docker0"));
    for nothing in [&[][..], &["--interface-include="]] {
        assert!(resolve(nothing).unwrap().observer.watches("docker0"));
    }
}

#[test]
fn none_turns_folders_off() {
    let config = resolve(&["--pin-dir=none", "--state-dir=none"]).unwrap();
    assert_eq!(config.kept.journal_folder(), None);
    assert_eq!((config.kept.pin_dir, config.kept.state_dir), (None, None));
}

#[rstest]
#[case(&[], Some("/run/pathproof"))]
#[case(&["--state-dir=/a"], Some("/a"))]
#[case(&["--state-dir=/a", "--journal-dir=/b"], Some("/b"))]
#[case(&["--journal-dir=none"], None)]
fn the_journals_folder(#[case] options: &[&str], #[case] folder: Option<&str>) {
    let kept = resolve(options).unwrap().kept;
    assert_eq!(kept.journal_folder(), folder.map(Path::new));
}

#[rstest]
#[case(Some("said"), Some("env"), "said")]
#[case(None, Some("env"), "env")]
#[case(Some(""), Some(" env "), "env")]
#[case(None, Some(""), "host.example.com")]
fn the_nodes_name(#[case] said: Option<&str>, #[case] env: Option<&str>, #[case] expected: &str) {
    let around = Surroundings {
        node_name: env.map(str::to_owned),
        hostname: Some("Host.Example.com\n".to_owned()),
        in_cluster: false,
    };
    let said = said.map(|said| format!("--node-name={said}"));
    let options = [Some("--manifests=/cluster"), said.as_deref()];
    let options: Vec<&str> = options.into_iter().flatten().collect();
    let config = resolve_in(&options, &around).unwrap();
    assert_eq!(&*config.node_name, expected);
}

#[test]
fn without_a_cluster_view_there_is_nothing_to_prove() {
    let message = resolve_in(&[], &around()).unwrap_err();
    assert!(message.contains("--manifests"), "{message}");
    let message = resolve_in(&[], &Surroundings::default()).unwrap_err();
    assert!(message.contains("--node-name"), "{message}");
}

#[test]
fn a_missing_folder_is_named() {
    let mut config = resolve(&[]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    config.source = Source::Folder(folder.path().to_owned());
    assert!(config.check().is_ok());
    config.source = Source::Folder(folder.path().join("gone"));
    let message = config.check().unwrap_err().to_string();
    assert!(
        message.contains("gone") && message.contains("create it"),
        "{message}"
    );
}

/// Source that these options select.
fn source(options: &[&str], in_cluster: bool) -> Result<Source, String> {
    let around = Surroundings {
        in_cluster,
        ..around()
    };
    resolve_in(options, &around).map(|config| config.source)
}

#[rstest]
#[case(&["--manifests=/cluster"], true, "folder /cluster")]
#[case(&["--kubeconfig=/etc/admin.conf"], true, "API server of /etc/admin.conf")]
#[case(&["--kubeconfig=/etc/admin.conf", "--server=https://10.0.0.1:6443"], false,
    "API server https://10.0.0.1:6443")]
#[case(&["--server=http://[fd00::1]:8080"], false, "API server http://[fd00::1]:8080")]
#[case(&[], true, "API server of this cluster")]
fn the_source_of_the_view(#[case] options: &[&str], #[case] in_cluster: bool, #[case] is: &str) {
    let found = source(options, in_cluster).unwrap();
    assert_eq!(found.to_string(), is);
    assert!(found.has_services(), "{found:?}");
}

#[rstest]
#[case(&["--manifests=/cluster", "--kubeconfig=/etc/admin.conf"], ["--manifests", "--kubeconfig"])]
#[case(&["--manifests=/cluster", "--server=https://a"], ["--manifests", "--server"])]
#[case(&["--server=10.0.0.1:6443"], ["'10.0.0.1:6443'", "--server"])]
#[case(&["--server=ftp://10.0.0.1"], ["'ftp://10.0.0.1'", "give http://HOST:PORT"])]
#[case(&["--server=https://"], ["'https://'", "give http://HOST:PORT"])]
#[case(&["--server=https://a", "--view=sentinel", "--sentinel=off"], ["--view", "--sentinel"])]
fn invalid_sources_are_refused(#[case] options: &[&str], #[case] expected: [&str; 2]) {
    let message = source(options, true).unwrap_err();
    let has = |part: &str| message.contains(part);
    assert!(expected.into_iter().all(has), "{message}");
}

#[test]
fn the_view_of_the_sentinel_names_it() {
    let found = source(&["--view=sentinel", "--sentinel-service=a/b"], true).unwrap();
    assert!(!found.has_services(), "{found:?}");
    let Source::Api { only, .. } = found else {
        panic!("{found:?}");
    };
    assert_eq!(only.unwrap().to_string(), "a/b");
}

#[rstest]
#[case(&["--server=http://h"], true, true)]
#[case(&["--server=http://h", "--publish-condition=off"], false, true)]
#[case(&["--server=http://h", "--publish-condition", "--publish-events=off"], true, false)]
#[case(&["--manifests=/cluster"], false, false)]
#[case(&["--manifests=/cluster", "--publish-events=off"], false, false)]
fn publishing_is_on_where_there_is_an_api_server(
    #[case] options: &[&str],
    #[case] condition: bool,
    #[case] events: bool,
) {
    let publish = resolve_in(options, &around()).unwrap().publish;
    assert_eq!((publish.condition, publish.events), (condition, events));
}

#[rstest]
#[case("--publish-condition")]
#[case("--publish-condition=on")]
#[case("--publish-events=on")]
fn with_a_folder_there_is_nothing_to_publish_to(#[case] option: &str) {
    let error = resolve(&[option]).unwrap_err();
    assert!(error.starts_with(option.trim_end_matches("=on")), "{error}");
    assert!(error.contains("needs an API server"), "{error}");
}

#[test]
fn the_autoscalers_taint_is_always_there() {
    let taints = resolve(&[]).unwrap().terminating;
    assert!(taints.contains("ToBeDeletedByClusterAutoscaler"));
}

#[test]
fn presets_and_keys_add_up() {
    let taints = resolve(&["--terminating-taint=karpenter,leaving,,a.io/b"]);
    let taints = taints.unwrap().terminating;
    for key in [
        "ToBeDeletedByClusterAutoscaler",
        "karpenter.sh/disrupted",
        "leaving",
        "a.io/b",
    ] {
        assert!(taints.contains(key), "{key}");
    }
}

#[test]
fn conditions_and_labels_mark_a_node() {
    let options = [
        "--terminating-condition=Terminating,Ready=False",
        "--terminating-label=kured=rebooting,,example.com/leaves",
    ];
    let marks = [
        ("condition Terminating", Some("True")),
        ("condition Ready", Some("False")),
        ("label kured", Some("rebooting")),
        ("label example.com/leaves", None),
    ];
    let marks = marks.map(|(key, value)| (key.to_owned(), value.map(str::to_owned)));
    let expected = TerminatingMarks::default().with(marks);
    assert_eq!(resolve(&options).unwrap().terminating, expected);
}

#[rstest]
#[case("karpentre")]
#[case("two words")]
#[case("/name")]
#[case("prefix/")]
fn neither_preset_nor_key(#[case] value: &str) {
    let error = resolve(&["--terminating-taint", value]).unwrap_err();
    assert!(
        error.contains(value) && error.contains("karpenter"),
        "{error}"
    );
}

#[derive(Parser)]
struct RotatorLine {
    #[command(flatten)]
    rotate: RotateConfig,
}

#[rstest]
#[case::default(&[], &crate::config::rotate::DOMAINS)]
#[case::several(&["--brake-by=pool", "--brake-by=example.com/rack,zone"], &["pool", "example.com/rack", "zone"])]
#[case::off(&["--brake-by=none"], &[])]
fn labels_of_failure_domains(#[case] options: &[&str], #[case] expected: &[&str]) {
    let line = RotatorLine::try_parse_from(["rotate"].iter().chain(options)).unwrap();
    let domains = line.rotate.domains();
    assert!(
        domains
            .iter()
            .map(|label| &**label)
            .eq(expected.iter().copied())
    );
    assert!(RotatorLine::try_parse_from(["rotate", "--brake-by=a/b/c"]).is_err());
}

/// The core's tests, its simulator and docs/sizing.md assume the same interval.
#[test]
fn the_default_interval_is_the_cores() {
    let interval = |options: &[&str]| {
        let line = RotatorLine::try_parse_from(["rotate"].iter().chain(options));
        line.map(|line| line.rotate.interval)
    };
    assert_eq!(interval(&[]).unwrap(), rotation::INTERVAL);
    assert_eq!(
        interval(&["--interval=60"]).unwrap(),
        Duration::from_secs(60)
    );
    interval(&["--interval=9"]).unwrap_err();
}
