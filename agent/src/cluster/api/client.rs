//! How a cluster's API server is reached: the one place that makes clients.
//!
//! Everything that talks to an API server takes its client from here and clones it: the watches of
//! `cluster::api`, what publishes, the rotator. A client renews its token and its certificate
//! authority by itself, from their files, at least once a minute.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hyper::Uri;
use kube::client::RustlsTlsError;
use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use thiserror::Error;

use super::routes::Routes;

/// A connection, with its TLS handshake, stands within this, or another address is tried.
const CONNECT: Duration = Duration::from_secs(5);

/// Where the API server is, and who asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiAccess {
    /// A kubeconfig: its current context says all.
    pub kubeconfig: Option<PathBuf>,
    /// URL of the API server, `http` or `https`. Wins over that of the kubeconfig; without one the
    /// ServiceAccount that is mounted, if one is, asks by `https`, and nobody by `http`.
    pub server: Option<String>,
    /// Where the addresses of the API server are remembered, for the access from within a cluster
    /// (neither of the above).
    pub state_dir: Option<PathBuf>,
}

/// Why there is no client.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The kubeconfig does not do.
    #[error("--kubeconfig {}: {source}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: Box<KubeconfigError>,
    },
    /// The URL is none.
    #[error(
        "--server: {url:?} is no URL of an API server: give http://HOST:PORT or https://HOST:PORT"
    )]
    Url {
        /// What was said.
        url: String,
    },
    /// The ServiceAccount cannot be read.
    #[error(
        "the ServiceAccount's token and certificate cannot be read; mount them (automountServiceAccountToken), or give --kubeconfig"
    )]
    InCluster {
        /// What is missing.
        source: InClusterError,
    },
    /// Nothing says whom to trust.
    #[error(
        "no certificate authority is named for the API server, and the system's cannot be read ({source}); name one in the kubeconfig (certificate-authority), or mount the node's /etc/ssl/certs: the image has none"
    )]
    NoAuthority {
        /// What was tried.
        source: Box<kube::Error>,
    },
    /// What was found cannot be used: a certificate, a key, a token.
    #[error("the API server's credentials cannot be used: {source}")]
    Credentials {
        /// What is wrong.
        source: Box<kube::Error>,
    },
}

/// A client for that access. Nothing is asked of the server yet. Must be called within a tokio
/// runtime.
///
/// # Errors
/// What is wrong with the access; a server that is away is no error here.
pub async fn client(access: &ApiAccess) -> Result<Client, ClientError> {
    if let Some(path) = &access.kubeconfig {
        let mut config = kubeconfig(path.clone()).await?;
        if let Some(url) = &access.server {
            config.cluster_url = parse(url)?;
        }
        return direct(config);
    }
    let Some(url) = &access.server else {
        let config = Config::incluster_env().map_err(|source| ClientError::InCluster { source })?;
        let namespace = config.default_namespace.clone();
        let routes = Routes::new(tuned(config), access.state_dir.as_deref())?;
        return Ok(Client::new(Arc::new(routes).service(), namespace));
    };
    let uri = parse(url)?;
    // A token that goes over plain HTTP is anybody's.
    let mounted = (uri.scheme_str() == Some("https")).then(Config::incluster_dns);
    let mut config = match mounted {
        Some(Ok(config)) => config,
        _ => Config::new(uri.clone()),
    };
    config.cluster_url = uri;
    direct(config)
}

/// The cause at the bottom of an error: it says most, and is the same the next time.
pub(crate) fn root_cause(error: &kube::Error) -> String {
    let mut last: &dyn std::error::Error = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    last.to_string()
}

/// A client that knows one address.
pub(super) fn direct(config: Config) -> Result<Client, ClientError> {
    let config = tuned(config);
    let named = config.root_cert.is_some();
    Client::try_from(config).map_err(|source| {
        let source = Box::new(source);
        match *source {
            kube::Error::RustlsTls(RustlsTlsError::AddRootCertificate(_)) if !named => {
                ClientError::NoAuthority { source }
            }
            _ => ClientError::Credentials { source },
        }
    })
}

async fn kubeconfig(path: PathBuf) -> Result<Config, ClientError> {
    let fail = |source| ClientError::Kubeconfig {
        path: path.clone(),
        source: Box::new(source),
    };
    let read = Kubeconfig::read_from(&path).map_err(fail)?;
    Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())
        .await
        .map_err(fail)
}

fn tuned(mut config: Config) -> Config {
    config.connect_timeout = Some(CONNECT);
    // Those who ask know when to ask again.
    config.default_retry = false;
    // Where nobody is asked for a certificate none is looked for: an image from scratch has none.
    let unasked = config.accept_invalid_certs || config.cluster_url.scheme_str() == Some("http");
    if unasked && config.root_cert.is_none() {
        config.root_cert = Some(Vec::new());
    }
    config
}

fn parse(url: &str) -> Result<Uri, ClientError> {
    let fail = || ClientError::Url {
        url: url.to_owned(),
    };
    let uri: Uri = url.parse().map_err(|_| fail())?;
    match (uri.scheme_str(), uri.host()) {
        (Some("http" | "https"), Some(_)) => Ok(uri),
        _ => Err(fail()),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("http://10.0.0.1", false, true)]
    #[case("https://10.0.0.1", true, true)]
    #[case("https://10.0.0.1", false, false)]
    fn only_who_is_asked_for_a_certificate_needs_an_authority(
        #[case] url: &str,
        #[case] accept_invalid: bool,
        #[case] none_needed: bool,
    ) {
        let mut config = Config::new(url.parse().unwrap());
        config.accept_invalid_certs = accept_invalid;
        assert_eq!(tuned(config).root_cert.is_some(), none_needed);
    }

    #[rstest]
    #[case("10.0.0.1:6443")]
    #[case("ftp://10.0.0.1")]
    #[case("https://")]
    #[case("")]
    #[tokio::test]
    async fn what_is_no_url_is_refused(#[case] url: &str) {
        let access = ApiAccess {
            server: Some(url.to_owned()),
            ..ApiAccess::default()
        };
        let error = client(&access).await.map(drop).unwrap_err().to_string();
        assert!(error.contains("give http://HOST:PORT"), "{error}");
    }

    #[tokio::test]
    async fn a_missing_kubeconfig_is_named() {
        let access = ApiAccess {
            kubeconfig: Some("/nowhere/admin.conf".into()),
            ..ApiAccess::default()
        };
        let error = client(&access).await.map(drop).unwrap_err().to_string();
        assert!(
            error.starts_with("--kubeconfig /nowhere/admin.conf: "),
            "{error}"
        );
    }
}
