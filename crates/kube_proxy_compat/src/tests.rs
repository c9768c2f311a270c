use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use pathproof::config::{ApiArgs, PortTakeover, Source};
use rstest::rstest;

use super::*;

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn around() -> Surroundings {
    Surroundings {
        hostname: Some("Host-1\n".to_owned()),
        ..Surroundings::default()
    }
}

fn resolve_with(text: &str, set: &[&str]) -> Result<(Config, Vec<String>), DropInError> {
    let set: BTreeSet<&str> = set.iter().copied().collect();
    match read(&words(text))? {
        Action::Run(settings) => resolve(&settings, &around(), &|name| set.contains(name)),
        other => panic!("{other:?}"),
    }
}

fn config(text: &str) -> Config {
    resolve_with(text, &[]).unwrap().0
}

fn addresses(config: &Config) -> (String, String) {
    fn text(address: Option<impl ToString>) -> String {
        match address {
            Some(address) => address.to_string(),
            None => "none".to_owned(),
        }
    }
    (text(config.healthz.address), text(config.admin.address))
}

/// Flags that RKE 1 passes, in arbitrary order, with those that its releases add by default.
const RKE: &str = "--hostname-override=worker-1 --healthz-bind-address=127.0.0.1 --v=2 \
                   --cluster-cidr=10.42.0.0/16 --bind-address=192.0.2.7 \
                   --kubeconfig=/etc/kubernetes/ssl/kubecfg-kube-proxy.yaml";

#[test]
fn the_flags_of_rke_run_an_agent() {
    let (config, notes) =
        resolve_with(&format!("{RKE} --healthz-bind-address=0.0.0.0"), &[]).unwrap();
    assert_eq!(&*config.node_name, "worker-1");
    assert_eq!(
        config.source.to_string(),
        "API server of /etc/kubernetes/ssl/kubecfg-kube-proxy.yaml"
    );
    assert_eq!(
        addresses(&config),
        (
            "all addresses, port 10256".to_owned(),
            "127.0.0.1:10249".to_owned()
        )
    );
    assert_eq!(config.healthz.port_takeover, PortTakeover::Bind);
    assert!(config.drop_in && !config.publish.condition && !config.publish.events);
    assert_eq!(config.process.log_filter, "info,kube_client=off");
    assert_eq!(
        notes[0],
        "ignored flags that have no effect in pathproof: --cluster-cidr, --bind-address"
    );
    assert_eq!(notes.len(), 1);
}

#[test]
fn a_health_port_at_loopback_is_named() {
    let (config, notes) = resolve_with(RKE, &[]).unwrap();
    assert_eq!(addresses(&config).0, "127.0.0.1:10256");
    assert!(
        notes
            .iter()
            .any(|note| note.contains("no load balancer reaches 127.0.0.1:10256")),
        "{notes:?}"
    );
}

#[rstest]
#[case("", "all addresses, port 10256", "127.0.0.1:10249")]
#[case("--healthz-port=0", "none", "127.0.0.1:10249")]
#[case(
    "--healthz-port=0 --healthz-bind-address=1.2.3.4:1",
    "none",
    "127.0.0.1:10249"
)]
#[case(
    "--healthz-bind-address=1.2.3.4 --healthz-port=7",
    "1.2.3.4:7",
    "127.0.0.1:10249"
)]
#[case(
    "--healthz-bind-address=1.2.3.4:5 --healthz-port=7",
    "1.2.3.4:5",
    "127.0.0.1:10249"
)]
#[case(
    "--healthz-bind-address=::",
    "all addresses, port 10256",
    "127.0.0.1:10249"
)]
#[case(
    "--healthz-bind-address 2001:db8::1",
    "[2001:db8::1]:10256",
    "127.0.0.1:10249"
)]
#[case("--healthz-bind-address=[::1]:9", "[::1]:9", "127.0.0.1:10249")]
#[case(
    "--healthz-bind-address=",
    "all addresses, port 10256",
    "127.0.0.1:10249"
)]
#[case("--metrics-bind-address=", "all addresses, port 10256", "none")]
#[case("--metrics-port=0", "all addresses, port 10256", "none")]
#[case(
    "--metrics-bind-address=192.0.2.1",
    "all addresses, port 10256",
    "192.0.2.1:10249"
)]
#[case(
    "--metrics-bind-address=0.0.0.0:1",
    "all addresses, port 10256",
    "all addresses, port 1"
)]
#[case("--healthz_port 0 --metrics_port 0", "none", "none")]
fn addresses_are_those_of_kube_proxy(
    #[case] text: &str,
    #[case] healthz: &str,
    #[case] admin: &str,
) {
    let config = config(&format!("--kubeconfig=/k {text}"));
    assert_eq!(addresses(&config), (healthz.to_owned(), admin.to_owned()));
}

#[rstest]
#[case(
    "--master=https://192.0.2.1:6443",
    None,
    Some("https://192.0.2.1:6443")
)]
#[case("--kubeconfig=/k", Some("/k"), None)]
#[case("--kubeconfig=/k --master=http://h:1", Some("/k"), Some("http://h:1"))]
#[case("--kubeconfig=/old --kubeconfig=/k", Some("/k"), None)]
fn where_the_api_server_is(
    #[case] text: &str,
    #[case] file: Option<&str>,
    #[case] url: Option<&str>,
) {
    let expected = Source::Api {
        api: ApiArgs {
            kubeconfig: file.map(Into::into),
            server: url.map(str::to_owned),
        },
        only: None,
    };
    assert_eq!(config(text).source, expected);
}

#[rstest]
#[case("", "host-1")]
#[case("--hostname-override=Worker.Example", "worker.example")]
#[case("--hostname-override=", "host-1")]
fn names_are_in_lower_case(#[case] text: &str, #[case] name: &str) {
    assert_eq!(&*config(&format!("--kubeconfig=/k {text}")).node_name, name);
}

#[rstest]
#[case("-v=3", "info,kube_client=off")]
#[case("-v=4", "info,kube_client=off,pathproof=debug")]
#[case("--v 10", "info,kube_client=off,pathproof=trace")]
fn klog_levels_have_a_meaning(#[case] text: &str, #[case] filter: &str) {
    assert_eq!(
        config(&format!("--kubeconfig=/k {text}"))
            .process
            .log_filter,
        filter
    );
}

#[rstest]
#[case("--help --cleanup", Action::Help)]
#[case("-h", Action::Help)]
#[case("--version", Action::Version)]
#[case("--version=raw", Action::Version)]
#[case("--cleanup --kubeconfig=/k", Action::Cleanup)]
#[case("--cleanup=1", Action::Cleanup)]
#[case("--init-only", Action::InitOnly)]
#[case("--cleanup --write-config-to /x", Action::WriteConfig("/x".to_owned()))]
fn flags_that_prevent_a_run(#[case] text: &str, #[case] expected: Action) {
    assert_eq!(read(&words(text)).unwrap(), expected);
}

#[rstest]
#[case("--version=v1.36.3")]
#[case("--version=false")]
#[case("--cleanup=false")]
#[case("--cleanup --cleanup=false")]
fn flags_that_do_not_prevent_a_run(#[case] text: &str) {
    assert!(matches!(read(&words(text)), Ok(Action::Run(_))), "{text}");
}

#[rstest]
#[case("--cleanup=maybe", "--cleanup: \"maybe\" is not true or false")]
#[case(
    "--masquerade-all=yes",
    "--masquerade-all: \"yes\" is not true or false"
)]
#[case("--masquerade-all true", "takes no arguments, but \"true\" is one")]
#[case("run", "takes no arguments, but \"run\" is one")]
#[case("-v=two", "--v: \"two\" is not a number")]
#[case("--healthz-port=65536", "--healthz-port: \"65536\" is not a port")]
#[case(
    "--logging-format=xml",
    "--logging-format: \"xml\" is not text or json"
)]
#[case("-healthz-port=0", "there is no flag -e")]
fn what_cannot_be_meant_is_said(#[case] text: &str, #[case] expected: &str) {
    let error = read(&words(text)).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[rstest]
#[case(
    "--healthz-bind-address=nowhere",
    "invalid value 'nowhere' for '--healthz-bind-address <ADDRESS>': it is not an address"
)]
#[case(
    "--metrics-bind-address=x",
    "invalid value 'x' for '--metrics-bind-address <ADDRESS>': it is not an address"
)]
#[case(
    "--hostname-override=a_b",
    "--hostname-override: \"a_b\" is not a valid Node name"
)]
#[case(
    "--master=nonsense",
    "invalid value 'nonsense' for '--master <URL>': it is not the URL"
)]
#[case("--config=/no/such/file", "--config: /no/such/file cannot be read")]
fn settings_are_named_by_the_flags_of_kube_proxy(#[case] text: &str, #[case] expected: &str) {
    let text = format!("--kubeconfig=/k {text}");
    let error = resolve_with(&text, &[]).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

/// The value bypasses the check of the flag, as one from PATHPROOF_LOG_FORMAT does.
#[test]
fn a_refused_option_lists_its_possible_values() {
    let format = flags::Flag::named("logging-format").unwrap();
    let settings = Settings {
        flags: vec![(format, "xml".to_owned())],
        ..Settings::default()
    };
    let error = resolve(&settings, &around(), &|_| false).unwrap_err();
    let error = error.to_string();
    assert!(error.ends_with("[possible values: text, json]"), "{error}");
}

#[test]
fn a_missing_api_server_is_reported_with_kube_proxys_flags() {
    let error = resolve_with("", &[]).unwrap_err().to_string();
    assert!(
        error.contains("--kubeconfig FILE or --master URL"),
        "{error}"
    );
}

/// clap reads variables of the process; this test checks that no option overrides them.
#[test]
fn variables_apply_where_no_flag_does() {
    let settings = || match read(&words("--kubeconfig=/k")).unwrap() {
        Action::Run(settings) => settings,
        other => panic!("{other:?}"),
    };
    let all = options::of(&settings(), &|_| false);
    assert!(all.contains(&"--publish-events=off".to_owned()), "{all:?}");
    let set = options::of(&settings(), &|_| true);
    assert_eq!(set, ["pathproof", "run", "--kubeconfig=/k"]);
}

#[test]
fn unknown_flags_are_named_once() {
    let text = "--kubeconfig=/k --cleanup-ipvs --enforcement=audit --cleanup-ipvs=true";
    let (_, notes) = resolve_with(text, &[]).unwrap();
    assert_eq!(
        notes[0],
        "ignored flags that kube-proxy 1.36 does not have (set pathproof's own options by \
         environment variables): --cleanup-ipvs, --enforcement"
    );
}

const FILE: &str = "\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
bindAddress: \"::\"
healthzBindAddress: 192.0.2.1
hostnameOverride: From-File
clientConnection:
  kubeconfig: /file/kubeconfig
  qps: 5
featureGates: {A: true}
logging:
  verbosity: 5
iptables:
  syncPeriod: 30s
";

fn with_file(text: &str, flags: &str) -> Result<(Config, Vec<String>), DropInError> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    resolve_with(&format!("--config={} {flags}", file.path().display()), &[])
}

#[test]
fn a_file_overrides_most_flags() {
    let flags = "--kubeconfig=/flag --healthz-port=0 --metrics-bind-address=";
    let (config, notes) = with_file(FILE, flags).unwrap();
    assert_eq!(config.source.to_string(), "API server of /file/kubeconfig");
    assert_eq!(
        addresses(&config),
        ("192.0.2.1:10256".to_owned(), "127.0.0.1:10249".to_owned())
    );
    assert_eq!(&*config.node_name, "from-file");
    assert_eq!(
        config.process.log_filter,
        "info,kube_client=off,pathproof=debug"
    );
    assert_eq!(
        notes[0],
        "ignored flags that --config overrides: --kubeconfig, --healthz-port, \
         --metrics-bind-address"
    );
}

#[test]
fn a_name_the_log_and_the_server_win_over_the_file() {
    let flags = "--hostname-override=flag -v=1 --logging-format=json --master=http://m:1";
    let (config, notes) = with_file(FILE, flags).unwrap();
    assert_eq!(&*config.node_name, "flag");
    assert_eq!(config.process.log_filter, "info,kube_client=off");
    assert_eq!(config.source.to_string(), "API server http://m:1");
    assert_eq!(notes, Vec::<String>::new());
}

#[rstest]
#[case("", "is not a kube-proxy configuration")]
#[case(
    "kind: KubeProxyConfiguration\napiVersion: v1\n",
    "it has apiVersion \"v1\""
)]
#[case("kind: [", "is not a kube-proxy configuration")]
#[case("a: 1\n", "it has apiVersion \"\" and kind \"\"")]
fn a_file_of_something_else_is_refused(#[case] text: &str, #[case] expected: &str) {
    let error = with_file(text, "").unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn json_is_yaml() {
    let text = r#"{"apiVersion":"kubeproxy.config.k8s.io/v1alpha1","kind":"KubeProxyConfiguration",
        "clientConnection":{"kubeconfig":"/k"}}"#;
    let (config, _) = with_file(text, "").unwrap();
    assert_eq!(config.source.to_string(), "API server of /k");
}

fn call(words: &[&str]) -> Option<Vec<String>> {
    super::words(words.iter().map(OsString::from))
}

#[test]
fn the_called_name_selects_kube_proxy() {
    let flags = || Some(vec!["--v=2".to_owned()]);
    assert_eq!(call(&["kube-proxy", "--v=2"]), flags());
    assert_eq!(call(&["/usr/local/bin/kube-proxy", "--v=2"]), flags());
    assert_eq!(call(&["pathproof", "kube-proxy", "--v=2"]), flags());
    assert_eq!(call(&["kube-proxy"]), Some(Vec::new()));
    for other in [
        &["pathproof"][..],
        &["pathproof", "run"],
        &[],
        &["kube-proxy-1"],
    ] {
        assert!(call(other).is_none(), "{other:?}");
    }
    let bytes = OsString::from_vec(vec![b'-', 0xff]);
    let words = super::words([OsString::from(NAME), bytes].into_iter());
    let error = read(&words.unwrap()).unwrap_err().to_string();
    assert!(error.contains("there is no flag -\u{fffd}"), "{error}");
}

#[test]
fn the_page_of_help_lists_what_counts() {
    let page = help();
    assert!(page.contains("\n  -v, --v Level "), "{page}");
    assert!(!page.contains("healthz-port"), "{page}");
}
