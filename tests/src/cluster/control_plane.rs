//! etcd and kube-apiserver on the other node of the world, with RBAC; or on another machine
//! altogether, where this one is emulated and would take minutes for them.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::json;

use super::audit::{self, Request};
use super::{Api, Process, Relay, Servers, base};
use crate::wait::until;
use crate::world::{Namespace, World, layout};

/// Port of the API server.
const PORT: u16 = 6443;
/// How long a server may take to become ready, on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(90);
/// Static tokens: who bears one, in which group.
const ADMIN: &str = "admin-token";
const PROXY: &str = "kube-proxy-token";
const TOKENS: &str = "admin-token,admin,1,\"system:masters\"\n\
                      kube-proxy-token,system:kube-proxy,2\n";

/// Says that the API server runs on another machine: the file that holds the certificate of its
/// authority. It is reached at [`ControlPlane::address`] from where this process runs.
const ELSEWHERE: &str = "PATHPROOF_TEST_API_CA";

/// The running control plane; ends when dropped.
#[derive(Debug)]
pub struct ControlPlane {
    ns: Namespace,
    dir: PathBuf,
    servers: Servers,
    apiserver: Option<Process>,
    ca: String,
    // Last: the API server ends before it.
    _below: Below,
}

/// What an API server rests on.
#[derive(Debug)]
enum Below {
    /// Its store.
    Etcd { _process: Process },
    /// The way to another machine.
    Way { _relay: Relay },
}

/// The file that says that the API server runs on another machine.
pub(super) fn elsewhere() -> Option<PathBuf> {
    std::env::var_os(ELSEWHERE).map(PathBuf::from)
}

impl ControlPlane {
    /// Starts both servers and waits until the API is ready. Where they run on another machine:
    /// leads the world's other node there, and waits.
    pub fn start(world: &World, servers: &Servers) -> Result<Self> {
        match elsewhere() {
            Some(ca) => Self::reach(world, servers, &ca),
            None => Self::start_here(world, servers),
        }
    }

    fn reach(world: &World, servers: &Servers, ca: &Path) -> Result<Self> {
        let ca = fs::read_to_string(ca).with_context(|| format!("read {}", ca.display()))?;
        let relay = Relay::from_outside(&world.worker, Self::address(), Self::address())?;
        let control = Self {
            ns: world.worker.clone(),
            dir: world.dir().to_owned(),
            servers: servers.clone(),
            apiserver: None,
            ca,
            _below: Below::Way { _relay: relay },
        };
        let api = control.api()?;
        until(PATIENCE, || api.is_ready().then_some(())).context("no API server elsewhere")?;
        Ok(control)
    }

    fn start_here(world: &World, servers: &Servers) -> Result<Self> {
        let dir = world.dir().join("control-plane");
        fs::create_dir_all(&dir)?;
        fs::write(dir.join("tokens.csv"), TOKENS)?;
        let agent = format!("system:serviceaccount:{}:{}", base::NAMESPACE, base::AGENT);
        fs::write(dir.join("audit-policy.json"), audit::policy(&agent))?;
        let (private, public) = signing_keys()?;
        fs::write(dir.join("accounts.key"), private)?;
        fs::write(dir.join("accounts.pub"), public)?;
        // It waits for its disk at every write, and so would everything here.
        let data = world.quick_dir()?;
        let process = start_etcd(&world.worker, &servers.etcd, &dir, &data)?;
        let mut control = Self {
            ns: world.worker.clone(),
            dir,
            servers: servers.clone(),
            apiserver: None,
            ca: String::new(),
            _below: Below::Etcd { _process: process },
        };
        control.start_apiserver()?;
        Ok(control)
    }

    /// Address of the API server on the node network.
    pub fn address() -> SocketAddr {
        SocketAddr::new(IpAddr::V4(layout::WORKER.0), PORT)
    }

    /// Starts the API server, the first time or after [`ControlPlane::stop_apiserver`].
    pub fn start_apiserver(&mut self) -> Result<()> {
        if elsewhere().is_some() {
            bail!("the API server runs on another machine: no test starts or stops it here");
        }
        let command = self.apiserver_command();
        let mut apiserver = Process::start(command, "kube-apiserver", &self.dir)?;
        let certificate = self.dir.join("pki/apiserver.crt");
        let mut ca = None;
        apiserver.wait("a certificate", PATIENCE, || {
            ca = fs::read_to_string(&certificate)
                .ok()
                .and_then(|text| issuer(&text));
            ca.is_some()
        })?;
        self.ca = ca.context("a certificate")?;
        let api = self.api()?;
        apiserver.wait("/readyz", PATIENCE, || api.is_ready())?;
        self.apiserver = Some(apiserver);
        Ok(())
    }

    /// Kills the API server: its connections end, its port refuses.
    pub fn stop_apiserver(&mut self) {
        self.apiserver = None;
    }

    /// Process id of the API server while it runs.
    pub fn apiserver_pid(&self) -> Option<u32> {
        self.apiserver.as_ref().map(Process::pid)
    }

    /// Requests of the agent's ServiceAccount that the API server received, in their order.
    pub fn agent_requests(&self) -> Result<Vec<Request>> {
        audit::read(&self.dir.join("audit.log"))
    }

    /// The API, as an administrator, straight from the server's own node.
    pub fn api(&self) -> Result<Api> {
        Api::connect(&self.ns, Self::address(), &self.ca, ADMIN)
    }

    /// The API, as the bearer of a token.
    pub fn api_as(&self, token: &str) -> Result<Api> {
        Api::connect(&self.ns, Self::address(), &self.ca, token)
    }

    /// The key that signs tokens of ServiceAccounts.
    pub fn accounts_key(&self) -> PathBuf {
        self.dir.join("accounts.key")
    }

    /// A kubeconfig for kube-proxy that leads to `server`.
    pub fn proxy_kubeconfig(&self, server: SocketAddr) -> String {
        kubeconfig(server, &self.ca, &json!({ "token": PROXY }))
    }

    /// A kubeconfig for an administrator, straight to the server.
    pub fn admin_kubeconfig(&self) -> String {
        kubeconfig(Self::address(), &self.ca, &json!({ "token": ADMIN }))
    }

    /// Certificate of the authority behind the API server, in PEM.
    pub fn ca(&self) -> &str {
        &self.ca
    }

    fn apiserver_command(&self) -> std::process::Command {
        let file = |name: &str| self.dir.join(name).display().to_string();
        let (v4, v6) = layout::SERVICE_CIDRS;
        let address = Self::address().ip();
        let mut command = self.ns.command(&self.servers.apiserver);
        for (option, value) in [
            ("etcd-servers", "http://127.0.0.1:2379".to_owned()),
            ("bind-address", address.to_string()),
            ("advertise-address", address.to_string()),
            ("secure-port", PORT.to_string()),
            ("cert-dir", file("pki")),
            ("token-auth-file", file("tokens.csv")),
            ("audit-policy-file", file("audit-policy.json")),
            ("audit-log-path", file("audit.log")),
            ("authorization-mode", "RBAC".to_owned()),
            (
                "service-account-issuer",
                "https://kubernetes.default.svc".to_owned(),
            ),
            ("service-account-key-file", file("accounts.pub")),
            ("service-account-signing-key-file", file("accounts.key")),
            ("service-cluster-ip-range", format!("{v4},{v6}")),
            // Names of nodes are known to nobody here.
            ("kubelet-preferred-address-types", "InternalIP".to_owned()),
        ] {
            command.arg(format!("--{option}={value}"));
        }
        command
    }
}

fn start_etcd(ns: &Namespace, program: &Path, dir: &Path, data: &Path) -> Result<Process> {
    let (client, peer) = ("http://127.0.0.1:2379", "http://127.0.0.1:2380");
    let mut command = ns.command(program);
    command
        .arg("--data-dir")
        .arg(data.join("etcd"))
        .args([
            "--listen-client-urls",
            client,
            "--advertise-client-urls",
            client,
        ])
        .args([
            "--listen-peer-urls",
            peer,
            "--initial-advertise-peer-urls",
            peer,
        ])
        .args(["--initial-cluster", &format!("default={peer}")]);
    Process::start(command, "etcd", dir)
}

/// Keys for the tokens of ServiceAccounts, in PEM: the private one and the public one.
fn signing_keys() -> Result<(String, String)> {
    // What comes before the point of a public key on the curve P-256 (RFC 5480).
    const PUBLIC: [u8; 26] = [
        0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08,
        0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
    ];
    let (kind, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
    let private = EcdsaKeyPair::generate_pkcs8(kind, &random).map_err(|_| anyhow!("no key"))?;
    let pair = EcdsaKeyPair::from_pkcs8(kind, private.as_ref(), &random)
        .map_err(|why| anyhow!("the key just made: {why}"))?;
    let public = [&PUBLIC, pair.public_key().as_ref()].concat();
    Ok((
        pem("PRIVATE KEY", private.as_ref()),
        pem("PUBLIC KEY", &public),
    ))
}

fn pem(label: &str, bytes: &[u8]) -> String {
    let body = STANDARD.encode(bytes);
    let lines: Vec<&str> = body
        .as_bytes()
        .chunks(64)
        .map(|line| std::str::from_utf8(line).unwrap_or_default())
        .collect();
    let lines = lines.join("\n");
    format!("-----BEGIN {label}-----\n{lines}\n-----END {label}-----\n")
}

/// The last certificate of a chain: the one that signed the others.
fn issuer(chain: &str) -> Option<String> {
    const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
    const END: &str = "-----END CERTIFICATE-----\n";
    let last = &chain[chain.rfind(BEGIN)?..];
    // Half a file while the server writes it.
    last.ends_with(END).then(|| last.to_owned())
}

/// A kubeconfig. JSON is YAML as well.
pub fn kubeconfig(server: SocketAddr, ca: &str, user: &serde_json::Value) -> String {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{
            "name": "test",
            "cluster": {
                "server": format!("https://{server}"),
                "certificate-authority-data": STANDARD.encode(ca),
            },
        }],
        "users": [{ "name": "test", "user": user }],
        "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test" } }],
        "current-context": "test",
    })
    .to_string()
}
