//! Access to a cluster's API server: the only place that creates clients.
//!
//! All users of the API server clone their client from here: the watches of `cluster::api`, the
//! publisher, the rotator. A client rereads its token and its certificate authority from their files
//! at least once a minute. A client certificate is read once.

use std::error::Error;
use std::io;
use std::iter::successors;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper::Uri;
use hyper::http::uri::InvalidUri;
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{self};
use hyper_util::rt::TokioExecutor;
use kube::client::{ConfigExt, RustlsTlsError};
use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use tower::{BoxError, ServiceBuilder};

use super::routes::{Routes, learn};

const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Timeout of a connection attempt with its TLS handshake. After it another address is tried.
const CONNECT: Duration = Duration::from_secs(5);
/// Time without acknowledgements after which a connection is dead. Keepalives start when a connection was
/// idle for half of it.
const DEAD: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error(
        "--kubeconfig {0}: {source}; `kubectl --kubeconfig {0} config view --minify` shows what is wrong: \
         repair the file, or give another one",
        path.display()
    )]
    Kubeconfig {
        path: PathBuf,
        source: Box<KubeconfigError>,
    },
    /// Does not happen with the option, which accepts only URLs.
    #[error("--server: {0}")]
    Url(#[from] InvalidUri),
    #[error(
        "the ServiceAccount's token and certificate cannot be read; mount them (automountServiceAccountToken), or give --kubeconfig"
    )]
    InCluster(#[source] InClusterError),
    #[error(
        "the kubeconfig has no certificate authority, and the system's cannot be read ({0}); set \
         certificate-authority in the kubeconfig, or mount the node's /etc/ssl/certs (the image \
         has none)"
    )]
    NoAuthority(#[source] Box<kube::Error>),
    #[error("the API server's credentials cannot be used: {0}")]
    Credentials(#[source] Box<kube::Error>),
}

/// Creates a client, without a request to the server. Must be called within a tokio runtime.
///
/// The current context of a kubeconfig is used. `server` is a URL, `http` or `https`, and overrides the
/// kubeconfig's. Without a kubeconfig, `https` uses the mounted ServiceAccount if there is one, and `http` sends
/// no credentials. With neither, the client is for access from within a cluster; then `state_dir` is the folder
/// of the file with the API servers' addresses.
///
/// # Errors
/// The configuration is invalid; an unreachable server is no error here.
pub async fn client(
    kubeconfig: Option<&Path>,
    server: Option<&str>,
    state_dir: Option<&Path>,
) -> Result<Client, ClientError> {
    if let Some(path) = kubeconfig {
        let mut config = self::kubeconfig(path.to_owned()).await?;
        if let Some(url) = server {
            config.cluster_url = url.parse()?;
        }
        return direct(config);
    }
    let Some(url) = server else {
        let config = Config::incluster_env().map_err(ClientError::InCluster)?;
        let namespace = config.default_namespace.clone();
        let routes = Arc::new(Routes::new(tuned(config), state_dir)?);
        let client = routes.client(namespace);
        tokio::spawn(learn(routes, client.clone()));
        return Ok(client);
    };
    let uri: Uri = url.parse()?;
    // Use the mounted token only with https: over plain HTTP anybody could read it.
    let mounted = (uri.scheme_str() == Some("https")).then(Config::incluster_dns);
    let mut config = match mounted {
        Some(Ok(config)) => config,
        _ => Config::new(uri.clone()),
    };
    config.cluster_url = uri;
    direct(config)
}

/// An error, and the errors that caused it.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    successors(Some(error), |&error| error.source())
}

/// The root cause of an error. It is more specific than the errors that it caused, and stable between
/// retries.
pub(crate) fn root_cause(error: &kube::Error) -> String {
    causes(error).last().unwrap_or(error).to_string()
}

/// Whether a connection failed because the other machine acknowledged nothing for too long. If that machine
/// is on the same link, the kernel reports host unreachable instead of a timeout.
pub(super) fn is_dead(error: &io::Error) -> bool {
    use io::ErrorKind::{HostUnreachable, NetworkUnreachable, TimedOut};
    let io = causes(error).filter_map(|error| error.downcast_ref::<io::Error>());
    let mut kinds = io.map(io::Error::kind);
    kinds.any(|kind| matches!(kind, TimedOut | HostUnreachable | NetworkUnreachable))
}

/// A client for one address.
pub(super) fn direct(config: Config) -> Result<Client, ClientError> {
    let config = tuned(config);
    let named = config.root_cert.is_some();
    stack(config).map_err(|source| {
        let source = Box::new(source);
        match *source {
            kube::Error::RustlsTls(RustlsTlsError::AddRootCertificate(_)) if !named => {
                ClientError::NoAuthority(source)
            }
            _ => ClientError::Credentials(source),
        }
    })
}

/// Builds the same client as `kube`, but with TCP settings that detect a dead connection within [`DEAD`].
/// Without them, an idle watch could not be distinguished from a watch whose server is gone.
fn stack(config: Config) -> Result<Client, kube::Error> {
    if config.proxy_url.is_some() {
        // `kube` is built without proxies, and returns the error.
        return Client::try_from(config);
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_keepalive(Some(DEAD / 2));
    tcp.set_keepalive_interval(Some(DEAD / 4));
    tcp.set_tcp_user_timeout(Some(DEAD));
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(tcp)?);
    connector.set_connect_timeout(config.connect_timeout);
    let client = legacy::Client::builder(TokioExecutor::new()).build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(client);
    Ok(Client::new(service, config.default_namespace))
}

async fn kubeconfig(path: PathBuf) -> Result<Config, ClientError> {
    let fail = |source| ClientError::Kubeconfig {
        path: path.clone(),
        source: Box::new(source),
    };
    let read = Kubeconfig::read_from(&path).map_err(fail)?;
    let authority = authority_file(&read);
    let mut config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())
        .await
        .map_err(fail)?;
    // Set the path of the CA file. Without it, kube would not read the file again after the CA is renewed.
    config.root_cert_file = authority;
    Ok(config)
}

/// File of the certificate authority, if the current context names one.
fn authority_file(read: &Kubeconfig) -> Option<PathBuf> {
    let mut contexts = read.contexts.iter();
    let current = contexts.find(|context| Some(&context.name) == read.current_context.as_ref())?;
    let name = &current.context.as_ref()?.cluster;
    let cluster = read.clusters.iter().find(|cluster| cluster.name == *name)?;
    let cluster = cluster.cluster.as_ref()?;
    let file = cluster.certificate_authority.as_ref();
    file.filter(|_| cluster.certificate_authority_data.is_none())
        .map(PathBuf::from)
}

fn tuned(mut config: Config) -> Config {
    config.connect_timeout = Some(CONNECT);
    // Do not retry here, because the callers do.
    config.default_retry = false;
    // If no certificate is checked, set an empty list of authorities. Otherwise the system's list would be
    // loaded, which a scratch image does not have.
    let unasked = config.accept_invalid_certs || config.cluster_url.scheme_str() == Some("http");
    if unasked && config.root_cert.is_none() {
        config.root_cert = Some(Vec::new());
    }
    config
}

/// Files that a client reads, at start and later: tokens and certificates are renewed while it is in use.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct AccessFiles {
    /// Files and folders, as configured.
    pub paths: Vec<PathBuf>,
    /// Whether a program supplies a credential.
    pub runs_a_program: bool,
}

/// Files of an access, and the certificate authorities that `SSL_CERT_FILE` and `SSL_CERT_DIR` name.
pub fn files(kubeconfig: Option<&Path>) -> AccessFiles {
    let mut files = named_by(kubeconfig);
    let authorities = ["SSL_CERT_FILE", "SSL_CERT_DIR"].into_iter();
    let authorities = authorities.filter_map(std::env::var_os);
    files.paths.extend(authorities.map(PathBuf::from));
    files
}

/// The kubeconfig and the files that it names; without a kubeconfig, the ServiceAccount's folder. An
/// unreadable kubeconfig adds no other files: creating the client reports the error.
fn named_by(kubeconfig: Option<&Path>) -> AccessFiles {
    let Some(path) = kubeconfig else {
        return AccessFiles {
            paths: vec![SERVICE_ACCOUNT.into()],
            runs_a_program: false,
        };
    };
    let read = Kubeconfig::read_from(path).unwrap_or_default();
    let mut paths = vec![path.to_owned()];
    let clusters = read.clusters.into_iter().filter_map(|named| named.cluster);
    let authorities = clusters.filter_map(|cluster| cluster.certificate_authority);
    paths.extend(authorities.map(PathBuf::from));
    let users = read.auth_infos.into_iter();
    let mut runs_a_program = false;
    for user in users.filter_map(|named| named.auth_info) {
        let named = [user.client_certificate, user.client_key, user.token_file];
        paths.extend(named.into_iter().flatten().map(PathBuf::from));
        runs_a_program |= user.exec.is_some() || user.auth_provider.is_some();
    }
    AccessFiles {
        paths,
        runs_a_program,
    }
}

/// Folders in which a file may be replaced when a token or certificate is renewed: the folder of the path,
/// and the folder of the file that a link leads to.
pub fn folders(path: &Path) -> Vec<PathBuf> {
    let parent = |file: PathBuf| file.parent().map(Path::to_owned).unwrap_or(file);
    let named = [std::path::absolute(path), path.canonicalize()];
    let mut folders: Vec<_> = named.into_iter().flatten().map(parent).collect();
    folders.dedup();
    folders
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("http://10.0.0.1", false, true)]
    #[case("https://10.0.0.1", true, true)]
    #[case("https://10.0.0.1", false, false)]
    fn only_https_with_checked_certificates_needs_an_authority(
        #[case] url: &str,
        #[case] accept_invalid: bool,
        #[case] none_needed: bool,
    ) {
        let mut config = Config::new(url.parse().unwrap());
        config.accept_invalid_certs = accept_invalid;
        assert_eq!(tuned(config).root_cert.is_some(), none_needed);
    }

    /// An unusable kubeconfig is a wrong setting (exit code 64), so the text names the file and the remedy.
    #[rstest]
    #[case::missing(None)]
    #[case::empty(Some(""))]
    #[case::garbage(Some("\u{1}: ]["))]
    #[case::no_current_context(Some(HEAD))]
    #[tokio::test]
    async fn an_unusable_kubeconfig_is_a_wrong_configuration(#[case] text: Option<&str>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin.conf");
        if let Some(text) = text {
            std::fs::write(&path, text).unwrap();
        }
        let error = client(Some(&path), None, None).await.map(drop).unwrap_err();
        assert!(matches!(error, ClientError::Kubeconfig { .. }), "{error:?}");
        let error = error.to_string();
        let begins = format!("--kubeconfig {}: ", path.display());
        assert!(error.starts_with(&begins), "{error}");
        assert!(error.contains("config view --minify"), "{error}");
    }

    fn of(kubeconfig: &str) -> AccessFiles {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config");
        std::fs::write(&path, kubeconfig).unwrap();
        let mut found = named_by(Some(&path));
        found.paths.retain(|named| *named != path);
        for named in &mut found.paths {
            *named = named
                .strip_prefix(folder.path())
                .unwrap_or(named)
                .to_owned();
        }
        found
    }

    const HEAD: &str = "apiVersion: v1\nkind: Config\nclusters:\n- name: c\n  cluster:\n    \
                        server: https://10.0.0.1\n    certificate-authority: /pki/ca.crt\nusers:\n- name: u\n  user:\n";

    /// The agent must know this file, because the authority may be renewed while the agent runs.
    #[rstest]
    #[case::of_the_current_context("b", "", Some("/b/ca.crt"))]
    #[case::data_wins("b", r#", "certificate-authority-data": "YQ==""#, None)]
    #[case::no_such_context("c", "", None)]
    fn the_authoritys_file_is_known(
        #[case] current: &str,
        #[case] more: &str,
        #[case] expected: Option<&str>,
    ) {
        let cluster = |name, more| {
            format!(
                r#"{{"name": "{name}", "cluster": {{"certificate-authority": "/{name}/ca.crt"{more}}}}}"#
            )
        };
        let text = format!(
            r#"{{"current-context": "{current}", "contexts": [{{"name": "b", "context": {{"cluster": "b"}}}}],
            "clusters": [{}, {}]}}"#,
            cluster("a", ""),
            cluster("b", more)
        );
        let read: Kubeconfig = serde_json::from_str(&text).unwrap();
        assert_eq!(authority_file(&read).as_deref(), expected.map(Path::new));
    }

    #[test]
    fn every_file_that_is_named_is_found() {
        let user = "    client-certificate: own/tls.crt\n    client-key: own/tls.key\n    \
                    tokenFile: /tokens/token\n";
        let found = of(&format!("{HEAD}{user}"));
        let named = ["/pki/ca.crt", "own/tls.crt", "own/tls.key", "/tokens/token"];
        assert_eq!(found.paths, named.map(PathBuf::from));
        assert!(!found.runs_a_program);
    }

    #[test]
    fn a_credential_program_is_reported() {
        let user = "    exec:\n      apiVersion: client.authentication.k8s.io/v1\n      \
                    command: aws\n";
        assert!(of(&format!("{HEAD}{user}")).runs_a_program);
    }

    #[test]
    fn an_unreadable_kubeconfig_names_no_files() {
        assert_eq!(of("{"), AccessFiles::default());
    }

    #[test]
    fn a_link_is_followed_to_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let kept = root.join("kept");
        std::fs::create_dir(&kept).unwrap();
        std::fs::write(kept.join("token"), "").unwrap();
        std::os::unix::fs::symlink(kept.join("token"), root.join("token")).unwrap();
        assert_eq!(folders(&root.join("token")), [root.clone(), kept.clone()]);
        assert_eq!(folders(&kept.join("token")), [kept]);
    }
}
