//! etcd and kube-apiserver on the other node of the world, with RBAC. On an emulated machine, where their
//! start would take minutes, they run on another machine.

use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::{Api, Process, Relay, Servers, base, node_token};
use crate::prelude::*;
use crate::world::layout;

const PORT: u16 = 6443;
const ETCD: &str = "http://127.0.0.1:2379";
/// Time limit for the start of a server, for busy machines.
const PATIENCE: Duration = Duration::from_secs(90);
/// Static tokens, and the file that maps them to users and groups.
const ADMIN: &str = "admin-token";
const PROXY: &str = "kube-proxy-token";
const TOKENS: &str = "admin-token,admin,1,\"system:masters\"\n\
                      kube-proxy-token,system:kube-proxy,2\n";

/// Environment variable with the file of the CA certificate of an API server that runs on another machine.
/// This process reaches that server at [`ControlPlane::address`].
const ELSEWHERE: &str = "PATHPROOF_TEST_API_CA";

/// The running control plane; ends when dropped.
#[derive(Debug)]
pub struct ControlPlane {
    ns: Namespace,
    dir: PathBuf,
    servers: Servers,
    /// The API server. When dropped, its connections end and its port refuses new ones.
    pub apiserver: Option<Process>,
    /// Certificates of the API server and of its CA, in PEM.
    pub ca: String,
    // Dropped after the API server.
    _etcd: Option<Process>,
    /// Relay to the server on another machine.
    _way: Option<Relay>,
}

/// CA certificate of an API server on another machine, if there is one.
pub(super) fn elsewhere() -> Option<PathBuf> {
    std::env::var_os(ELSEWHERE).map(PathBuf::from)
}

impl ControlPlane {
    /// Starts both servers and waits until the API is ready. If they run on another machine, relays the other
    /// node's address to that machine instead, and waits.
    pub fn start(world: &World, servers: &Servers) -> Result<Self> {
        let mut control = Self {
            ns: world.worker.clone(),
            dir: world.dir().join("control-plane"),
            servers: servers.clone(),
            apiserver: None,
            ca: String::new(),
            _etcd: None,
            _way: None,
        };
        if let Some(file) = elsewhere() {
            let address = Self::address();
            control.ca = fs::read_to_string(&file)?;
            control._way = Some(Relay::start(&control.ns, address, None, address)?);
            let api = control.api()?;
            until(PATIENCE, || api.is_ready().then_some(())).context("no API server elsewhere")?;
            return Ok(control);
        }
        fs::create_dir_all(&control.dir)?;
        let mut command = control.ns.command(&servers.etcd);
        // Use fast storage: etcd syncs at every write, and every request here waits for the sync.
        let data = world.quick_dir()?.join("etcd");
        command.arg("--data-dir").arg(data);
        // A fixed address, which the API server dials: "localhost" may resolve to another one.
        for option in ["--listen-client-urls", "--advertise-client-urls"] {
            command.args([option, ETCD]);
        }
        control._etcd = Some(Process::start(command, "etcd", &control.dir)?);
        control.start_apiserver()?;
        Ok(control)
    }

    /// Address of the API server on the node network.
    pub fn address() -> SocketAddr {
        SocketAddr::new(IpAddr::V4(layout::WORKER.0), PORT)
    }

    /// Starts or restarts the API server.
    pub fn start_apiserver(&mut self) -> Result<()> {
        ensure!(self._way.is_none(), "the API server is another machine's");
        fs::write(self.dir.join("tokens.csv"), TOKENS)?;
        fs::write(self.dir.join("audit-policy.json"), audit_policy())?;
        let mut command = self.ns.command(&self.servers.apiserver);
        let options = apiserver_options(&self.dir.display().to_string());
        command.args(options.split_whitespace());
        let mut apiserver = Process::start(command, "kube-apiserver", &self.dir)?;
        let certificate = self.dir.join("pki/apiserver.crt");
        apiserver.wait("/readyz", PATIENCE, || {
            self.ca = fs::read_to_string(&certificate).unwrap_or_default();
            self.api().is_ok_and(|api| api.is_ready())
        })?;
        self.apiserver = Some(apiserver);
        Ok(())
    }

    /// Requests of the agent's ServiceAccount that the API server audited, ordered by arrival.
    pub fn agent_requests(&self) -> Result<Vec<Value>> {
        let text = fs::read_to_string(self.dir.join("audit.log"))?;
        // The last line may be incomplete.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let requests = whole.lines().map(serde_json::from_str);
        let mut requests: Vec<Value> = requests.collect::<Result<_, _>>()?;
        requests.sort_by_key(|request| request["requestReceivedTimestamp"].to_string());
        Ok(requests)
    }

    /// An API client for an administrator, on the server's node.
    pub fn api(&self) -> Result<Api> {
        self.api_as(ADMIN)
    }

    /// An API client for the holder of a token.
    pub fn api_as(&self, token: &str) -> Result<Api> {
        Api::connect(&self.ns, Self::address(), &self.ca, token)
    }

    /// A relay to the server for nodes. Tests can close it while their own connection to the server stays
    /// open.
    pub fn relay(&self) -> Result<Relay> {
        let mut near = Self::address();
        near.set_port(PORT + 1);
        Relay::start(&self.ns, near, Some(&self.ns), Self::address())
    }

    /// kube-proxy's kubeconfig for `server`.
    pub fn proxy_kubeconfig(&self, server: SocketAddr) -> String {
        kubeconfig(server, &self.ca, &json!({ "token": PROXY }))
    }

    /// An administrator's kubeconfig for a direct connection to the server.
    pub fn admin_kubeconfig(&self) -> String {
        kubeconfig(Self::address(), &self.ca, &json!({ "token": ADMIN }))
    }

    /// Writes a kubeconfig for `server` and a ServiceAccount of deploy/base, with a token for its pod on
    /// the node.
    pub fn account_kubeconfig(
        &self,
        world: &World,
        server: SocketAddr,
        account: &str,
    ) -> Result<PathBuf> {
        let token = world.dir().join(format!("{account}.token"));
        fs::write(&token, node_token(&self.api()?, account, &world.node_name)?)?;
        let config = kubeconfig(server, &self.ca, &json!({ "tokenFile": token }));
        let file = world.dir().join(format!("{account}.kubeconfig"));
        fs::write(&file, config)?;
        Ok(file)
    }
}

/// Options of the API server, with files in `dir`. The server generates its certificate itself, and the
/// certificate's key also signs tokens of ServiceAccounts.
fn apiserver_options(dir: &str) -> String {
    let (v4, v6) = layout::SERVICE_CIDRS;
    let address = ControlPlane::address().ip();
    // The names of nodes do not resolve here, so the API server must use their addresses.
    format!(
        "--etcd-servers={ETCD} --secure-port={PORT} --bind-address={address} \
         --advertise-address={address} --kubelet-preferred-address-types=InternalIP \
         --service-cluster-ip-range={v4},{v6} --authorization-mode=RBAC \
         --token-auth-file={dir}/tokens.csv --cert-dir={dir}/pki \
         --service-account-issuer=https://kubernetes.default.svc \
         --service-account-key-file={dir}/pki/apiserver.key \
         --service-account-signing-key-file={dir}/pki/apiserver.key \
         --audit-policy-file={dir}/audit-policy.json --audit-log-path={dir}/audit.log"
    )
}

/// Audits each request of the agent once, at its arrival. For a watch, that is its start.
fn audit_policy() -> String {
    let agent = format!("system:serviceaccount:{}:{}", base::NAMESPACE, base::AGENT);
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["ResponseStarted", "ResponseComplete", "Panic"],
        "rules": [{ "level": "Metadata", "users": [agent] }, { "level": "None" }],
    })
    .to_string()
}

/// A kubeconfig as JSON, which is also YAML.
pub(super) fn kubeconfig(server: SocketAddr, ca: &str, user: &Value) -> String {
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
