//! The admission policies refuse Services and slices that claim pathproof's addresses or ports, and accept
//! similar ones.

use http::Method;
use node_tests::cluster::{
    Api, ControlPlane, Servers, create, install, namespace, reserve, reserve_by,
};
use node_tests::manifests::Manifests;
use node_tests::prelude::*;

use crate::rights::code;
use crate::scene::PATIENCE;

mod generated;
mod protobuf;
mod writes;

const SENTINEL: &str = "/api/v1/namespaces/pathproof/services/pathproof-sentinel";
const ECHO: &str = "/api/v1/namespaces/pathproof/services/pathproof-echo";
const SERVICES: &str = "/api/v1/namespaces/shop/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices";
const MERGE: &str = "application/merge-patch+json";
const OLD: &str = "/api/v1/namespaces/shop/services/old";
const OLD_SLICE: &str = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices/old";
const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";

/// A cluster with deploy/base and a tenant's namespace, `shop`.
struct Shop {
    admin: Api,
    control: ControlPlane,
    _world: World,
}

impl Shop {
    fn open() -> Needed<Self> {
        skip::root()?;
        skip::tool(Mode::Nftables.tool())?;
        let programs = Servers::needed()?;
        let world = World::builder().build().expect("build a world");
        let control = ControlPlane::start(&world, &programs).expect("a control plane");
        let admin = control.api().expect("a client");
        let manifests = Manifests::write(&world, Vec::new()).expect("write manifests");
        install(&admin, &manifests).expect("deploy/base and a Node");
        namespace(&admin, "shop").expect("a namespace");
        let shop = Self {
            admin,
            control,
            _world: world,
        };
        assert_eq!(shop.service("old", &external(&["198.18.0.2"], 80)), 200);
        assert_eq!(
            shop.new_slice(&shop.admin, "old", "IPv4", "198.18.0.2"),
            200
        );
        reserve(&shop.admin).expect("the policies");
        shop.wait_refused(&external(&["198.18.0.2"], 80));
        for service in [SENTINEL, ECHO] {
            let ips = shop.cluster_ips(service);
            shop.wait_refused(&external(&[ips[0].as_str()], 80));
        }
        let denied = || (shop.slice(&shop.admin, "IPv4", "198.18.0.2") == 403).then_some(());
        until(PATIENCE, denied).expect("slices are never refused");
        Ok(shop)
    }

    /// Creates a Service in the shop and returns the status code. An accepted Service is deleted again.
    fn try_service(&self, spec: &Value) -> u16 {
        let answer = self.service("claim", spec);
        if answer == 200 {
            let claim = format!("{SERVICES}/claim");
            self.admin.delete(&claim).expect("delete a Service");
        }
        answer
    }

    fn service(&self, name: &str, spec: &Value) -> u16 {
        let service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": name, "namespace": "shop" }, "spec": spec,
        });
        code(self.admin.post(SERVICES, &service))
    }

    /// Waits until a new policy is in force, which takes a moment after its creation.
    fn wait_refused(&self, spec: &Value) {
        let refused = until(PATIENCE, || (self.try_service(spec) == 403).then_some(()));
        assert!(refused.is_some(), "never refused: {spec}");
    }

    fn patch(&self, path: &str, change: &Value) -> u16 {
        code(self.admin.request(Method::PATCH, path, MERGE, change))
    }

    /// Addresses that the API server assigned to a Service.
    fn cluster_ips(&self, service: &str) -> Vec<String> {
        let service = self.admin.get(service).expect("a Service");
        let ips = service["spec"]["clusterIPs"].as_array().expect("IPs");
        let text = |ip: &Value| ip.as_str().expect("an address").to_owned();
        ips.iter().map(text).collect()
    }

    /// The node port that the API server assigned to the sentinel.
    fn sentinel_port(&self) -> u64 {
        let sentinel = self.admin.get(SENTINEL).expect("the sentinel");
        let port = sentinel["spec"]["ports"][0]["nodePort"].as_u64();
        port.expect("a node port")
    }

    /// Creates a slice in the shop and returns the status code.
    fn new_slice(&self, api: &Api, name: &str, kind: &str, address: &str) -> u16 {
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": kind,
            "metadata": { "name": name, "namespace": "shop" },
            "endpoints": [{ "addresses": [address] }],
        });
        code(api.post(SLICES, &slice))
    }

    /// Like [`Self::new_slice`], but deletes an accepted slice again.
    fn slice(&self, api: &Api, kind: &str, address: &str) -> u16 {
        let answer = self.new_slice(api, "claim", kind, address);
        if answer == 200 {
            let claim = format!("{SLICES}/claim");
            self.admin.delete(&claim).expect("delete a slice");
        }
        answer
    }

    /// A client with the account of the EndpointSlice controller, which writes slices for pods.
    fn slice_controller(&self) -> Api {
        let account = json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": { "name": "endpointslice-controller", "namespace": "kube-system" },
        });
        create(&self.admin, account).expect("a ServiceAccount");
        let path = "/api/v1/namespaces/kube-system/serviceaccounts/endpointslice-controller/token";
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {},
        });
        let answer = self.admin.post(path, &request).expect("a token");
        let token = answer["status"]["token"].as_str().expect("a token");
        self.control.api_as(token).expect("a client")
    }
}

fn external(ips: &[&str], port: u64) -> Value {
    json!({
        "ipFamilyPolicy": "PreferDualStack", "externalIPs": ips, "ports": [{ "port": port }],
    })
}

fn balancer(port: u64) -> Value {
    json!({ "type": "LoadBalancer", "ports": [{ "port": port }] })
}

#[test]
fn claims_of_reserved_addresses_and_ports_are_refused() {
    let shop = needs!(Shop::open());
    let port = shop.sentinel_port();
    let ips = shop.cluster_ips(SENTINEL);
    let ip = |at: usize| ips[at].as_str();
    let echo = shop.cluster_ips(ECHO);
    let echo = echo[0].as_str();
    let named = |address: &str| {
        let mut service = balancer(80);
        service["loadBalancerIP"] = json!(address);
        service
    };
    for claim in [
        external(&["192.0.2.7", "198.18.0.2"], 80),
        external(&["198.18.0.1"], 80),
        external(&["2001:2::2"], 80),
        external(&["2001:2:0:0::1"], 80),
        external(&[ip(0)], 80),
        external(&[ip(1)], 443),
        external(&[echo], 19257),
        external(&["192.0.2.7"], port),
        external(&["192.0.2.7"], 10256),
        external(&["2001:db8::7"], 19256),
        named("198.18.0.2"),
        named(ip(0)),
        named(echo),
        balancer(10256),
        balancer(port),
    ] {
        assert_eq!(shop.try_service(&claim), 403, "{claim}");
    }
    for innocent in [
        external(&["192.0.2.7", "2001:db8::7"], 80),
        external(&["198.18.0.3"], 10255),
        named("192.0.2.8"),
        balancer(443),
        json!({ "type": "NodePort", "ports": [{ "port": 10256 }] }),
        json!({ "ports": [{ "port": 10256, "name": "a" }, { "port": port, "name": "b" }] }),
        json!({ "clusterIP": "None" }),
        json!({ "type": "ExternalName", "externalName": "shop.example" }),
    ] {
        assert_eq!(shop.try_service(&innocent), 200, "{innocent}");
    }
    slices(&shop);
    balancers(&shop, ip(0));
    what_was_there_before(&shop);
    // The policies exempt pathproof's namespace.
    let own = json!({ "spec": { "externalIPs": ["198.18.0.2"] } });
    assert_eq!(shop.patch(SENTINEL, &own), 200);
    without_parameters(&shop, [(SENTINEL, ip(0)), (ECHO, echo)]);
    audit_warns(&shop);
}

/// With the actions Warn and Audit, claims are reported and not refused.
fn audit_warns(shop: &Shop) {
    reserve_by(&shop.admin, &["Warn", "Audit"]).expect("audit");
    let claim = external(&["198.18.0.2"], 80);
    until(PATIENCE, || (shop.try_service(&claim) == 200).then_some(())).expect("a Service");
    let accepted = || (shop.slice(&shop.admin, "IPv4", "198.18.0.2") == 200).then_some(());
    until(PATIENCE, accepted).expect("a slice");
}

fn slices(shop: &Shop) {
    for (kind, address) in [("IPv4", "198.18.0.1"), ("IPv6", "2001:2::2")] {
        assert_eq!(shop.slice(&shop.admin, kind, address), 403, "{address}");
    }
    for (kind, address) in [
        ("IPv4", "192.0.2.21"),
        ("IPv6", "2001:db8::21"),
        ("FQDN", "shop.example"),
    ] {
        assert_eq!(shop.slice(&shop.admin, kind, address), 200, "{address}");
    }
    // The EndpointSlice controller is exempt, because it copies addresses from pods.
    let controller = shop.slice_controller();
    assert_eq!(shop.slice(&controller, "IPv4", "198.18.0.2"), 200);
}

/// The status is checked too, because a load balancer's controller writes addresses there.
fn balancers(shop: &Shop, cluster_ip: &str) {
    assert_eq!(shop.service("balanced", &balancer(80)), 200);
    let status = format!("{SERVICES}/balanced/status");
    let ingress = |entry: Value| json!({ "status": { "loadBalancer": { "ingress": [entry] } } });
    for claimed in ["198.18.0.2", "2001:2::1", cluster_ip] {
        let change = ingress(json!({ "ip": claimed }));
        assert_eq!(shop.patch(&status, &change), 403, "{claimed}");
    }
    for entry in [
        json!({ "ip": "192.0.2.9" }),
        json!({ "hostname": "balancer.example" }),
    ] {
        assert_eq!(shop.patch(&status, &ingress(entry.clone())), 200, "{entry}");
    }
}

/// The owner of a claim that is older than the policies can still change, repair and delete the object.
fn what_was_there_before(shop: &Shop) {
    let metadata = |field: &str, value: Value| json!({ "metadata": { field: value } });
    for change in [
        metadata("labels", json!({ "of": "shop" })),
        metadata("finalizers", json!(["shop.example/wait"])),
        metadata("finalizers", json!([])),
    ] {
        assert_eq!(shop.patch(OLD, &change), 200, "{change}");
        assert_eq!(shop.patch(OLD_SLICE, &change), 200, "slice: {change}");
    }
    let more = json!({ "spec": { "externalIPs": ["198.18.0.2", "192.0.2.7"] } });
    assert_eq!(shop.patch(OLD, &more), 403);
    let mended = json!({ "spec": { "externalIPs": ["192.0.2.7"] } });
    assert_eq!(shop.patch(OLD, &mended), 200);
    for (addresses, expected) in [
        (["198.18.0.2", "192.0.2.7"], 403),
        (["192.0.2.7", "192.0.2.8"], 200),
    ] {
        let change = json!({ "endpoints": [{ "addresses": addresses }] });
        assert_eq!(shop.patch(OLD_SLICE, &change), expected, "{change}");
    }
}

/// A binding whose Service is missing refuses nothing. Everything that does not depend on the Services stays
/// reserved, also with `sentinel.enabled=false` in the chart.
fn without_parameters(shop: &Shop, services: [(&str, &str); 2]) {
    for (service, cluster_ip) in services {
        shop.admin.delete(service).expect("delete a Service");
        let claim = external(&[cluster_ip], 80);
        let taken = until(PATIENCE, || (shop.try_service(&claim) == 200).then_some(()));
        assert!(taken.is_some(), "{cluster_ip} stays reserved");
    }
    for (service, expected) in [
        (external(&["198.18.0.2"], 80), 403),
        (external(&["192.0.2.7"], 10256), 403),
        (external(&["192.0.2.7"], 80), 200),
    ] {
        assert_eq!(shop.try_service(&service), expected, "{service}");
    }
}
