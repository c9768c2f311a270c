//! Random Services and slices, with nulls, empty lists and missing fields. Each is sent twice as a dry run: to a
//! tenant's namespace, and to pathproof's, which the policies exempt. If the API server accepts the second one,
//! the policies must refuse the first one exactly if it is a claim.

use std::collections::BTreeMap;
use std::net::IpAddr;

use fastrand::Rng;

use super::*;

/// Environment variable for the number of objects.
const OBJECTS: &str = "PATHPROOF_GENERATED_WRITES";
/// Seed of the first object; that of the next one is one higher.
const SEED: u64 = 20_261_130;
const FIXED: [&str; 4] = ["198.18.0.1", "198.18.0.2", "2001:2::1", "2001:2::2"];
const INNOCENT: [&str; 3] = ["192.0.2.7", "198.18.0.3", "2001:db8::7"];
/// Spellings of reserved addresses, and values that are no addresses.
const STRANGE: [&str; 6] = [
    "2001:2:0:0::2",
    "2001:0002::1",
    "198.018.0.2",
    "::ffff:198.18.0.2",
    "",
    "shop.example",
];

/// Addresses and ports that the policies reserve.
struct Reserved {
    fixed: Vec<IpAddr>,
    /// Addresses of the sentinel's and the pod probe's Service.
    of_services: Vec<IpAddr>,
    node_port: u64,
}

impl Reserved {
    fn of(shop: &Shop) -> Self {
        let ips = [SENTINEL, ECHO].map(|service| shop.cluster_ips(service));
        Self {
            fixed: FIXED.map(parsed).to_vec(),
            of_services: ips.concat().iter().map(|ip| parsed(ip)).collect(),
            node_port: shop.sentinel_port(),
        }
    }

    fn is_claim(&self, object: &Value) -> bool {
        match object["kind"].as_str() {
            Some("Service") => self.is_service_claim(&object["spec"]),
            _ => self.is_slice_claim(object),
        }
    }

    fn is_service_claim(&self, spec: &Value) -> bool {
        let is_reserved = |ip: &IpAddr| self.fixed.contains(ip) || self.of_services.contains(ip);
        let external: Vec<Option<IpAddr>> =
            list(&spec["externalIPs"]).iter().map(address).collect();
        let balancer = address(&spec["loadBalancerIP"]);
        let has_address = external
            .iter()
            .any(|ip| ip.is_none_or(|ip| is_reserved(&ip)))
            || balancer.is_some_and(|ip| is_reserved(&ip));
        let is_outside = !external.is_empty() || spec["type"] == "LoadBalancer";
        let is_closed = |port: &Value| port == 10256 || port == 19256;
        let has_port = list(&spec["ports"]).iter().any(|port| {
            let is_open = is_closed(&port["port"]) || port["port"] == self.node_port;
            (is_outside && is_open) || is_closed(&port["nodePort"])
        });
        has_address || has_port || is_closed(&spec["healthCheckNodePort"])
    }

    fn is_slice_claim(&self, slice: &Value) -> bool {
        let is_claim = |ip: &Value| address(ip).is_none_or(|ip| self.fixed.contains(&ip));
        let endpoints = list(&slice["endpoints"]).iter();
        let mut addresses = endpoints.flat_map(|endpoint| list(&endpoint["addresses"]));
        slice["addressType"] != "FQDN" && addresses.any(is_claim)
    }
}

fn parsed(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// The elements of a list, which may be null or absent.
fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// An address as the policies read it: without leading zeros, and not IPv4 in IPv6.
fn address(value: &Value) -> Option<IpAddr> {
    let ip: IpAddr = value.as_str()?.parse().ok()?;
    let is_mapped = matches!(ip, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
    (!is_mapped).then_some(ip)
}

/// Makes objects from random numbers.
struct Generator {
    rng: Rng,
    addresses: Vec<String>,
    node_port: u64,
}

impl Generator {
    fn new(seed: u64, reserved: &Reserved) -> Self {
        let of_services = reserved.of_services.iter().map(ToString::to_string);
        // Twice, so that enough objects are claims.
        let others = FIXED.iter().chain(&FIXED).chain(&STRANGE);
        let others = others.map(|text| (*text).to_owned());
        Self {
            rng: Rng::with_seed(seed),
            addresses: others.chain(of_services).collect(),
            node_port: reserved.node_port,
        }
    }

    fn pick(&mut self, values: &[Value]) -> Value {
        values[self.rng.usize(..values.len())].clone()
    }

    fn address(&mut self) -> Value {
        if self.rng.bool() {
            return self.pick(&INNOCENT.map(Value::from));
        }
        let at = self.rng.usize(..self.addresses.len());
        json!(self.addresses[at])
    }

    fn addresses(&mut self) -> Value {
        let count = self.rng.usize(..3);
        (0..count).map(|_| self.address()).collect()
    }

    /// An object with some of these fields: half of them are absent, and some null.
    fn some_of(&mut self, fields: Vec<(&str, Value)>) -> Value {
        let mut object = json!({});
        for (name, value) in fields {
            match self.rng.u8(..10) {
                0..5 => {}
                5 => object[name] = Value::Null,
                _ => object[name] = value,
            }
        }
        object
    }

    fn service(&mut self) -> Value {
        let kinds = ["LoadBalancer", "NodePort", "ClusterIP", ""].map(Value::from);
        let mut fields = vec![
            ("type", self.pick(&kinds)),
            ("externalIPs", self.addresses()),
            ("loadBalancerIP", self.address()),
            ("selector", json!({})),
        ];
        // Most kinds of Services may not have these.
        if self.rng.u8(..6) == 0 {
            let ports = [0, 10256, 31_500].map(Value::from);
            fields.push(("healthCheckNodePort", self.pick(&ports)));
            fields.push(("externalTrafficPolicy", json!("Local")));
        }
        let mut spec = self.some_of(fields);
        let count = self.rng.usize(..2);
        spec["ports"] = match self.rng.u8(..12) {
            0 => Value::Null,
            1 => json!([]),
            _ => (0..=count).map(|at| self.port(at)).collect(),
        };
        self.object("v1", "Service", json!({ "spec": spec }))
    }

    fn port(&mut self, at: usize) -> Value {
        let node_ports = [0, 0, 0, 10256, 30_500].map(Value::from);
        let protocols = ["TCP", "UDP", ""].map(Value::from);
        let fields = vec![
            ("protocol", self.pick(&protocols)),
            ("nodePort", self.pick(&node_ports)),
            ("targetPort", json!(8080)),
        ];
        let mut port = self.some_of(fields);
        let numbers = [80, 443, 8443, 10256, 19256, self.node_port].map(Value::from);
        port["port"] = self.pick(&numbers);
        port["name"] = json!(format!("port-{at}"));
        port
    }

    fn slice(&mut self) -> Value {
        let kinds = ["IPv4", "IPv4", "IPv4", "IPv6", "FQDN", ""];
        let kind = kinds[self.rng.usize(..kinds.len())];
        let count = self.rng.usize(..2);
        let ports = json!([{}, { "name": "b", "port": null }, { "name": "c", "port": 10256 }]);
        let mut slice = self.some_of(vec![("ports", ports)]);
        match self.rng.u8(..6) {
            0 => {}
            1 => slice["endpoints"] = Value::Null,
            2 => slice["endpoints"] = json!([]),
            _ => slice["endpoints"] = (0..=count).map(|_| self.endpoint(kind)).collect(),
        }
        slice["addressType"] = json!(kind);
        self.object("discovery.k8s.io/v1", "EndpointSlice", slice)
    }

    fn endpoint(&mut self, kind: &str) -> Value {
        let fields = vec![
            ("conditions", json!({ "ready": null, "terminating": true })),
            ("nodeName", json!("node-1")),
            ("hostname", json!("shop")),
            ("zone", json!("")),
        ];
        let mut endpoint = self.some_of(fields);
        endpoint["addresses"] = match self.rng.u8(..16) {
            0 => Value::Null,
            1 => json!([]),
            _ => json!([self.address_of(kind)]),
        };
        endpoint
    }

    /// Mostly an address of the slice's family.
    fn address_of(&mut self, kind: &str) -> Value {
        let fits = |address: &Value| {
            let has_colon = address.as_str().is_some_and(|text| text.contains(':'));
            has_colon == (kind == "IPv6")
        };
        let first = self.address();
        if fits(&first) { first } else { self.address() }
    }

    /// Adds the fields of every object. The labels can be those of pathproof.
    fn object(&mut self, version: &str, kind: &str, mut object: Value) -> Value {
        let labels = json!({
            "app.kubernetes.io/name": "pathproof", "app.kubernetes.io/component": "sentinel",
        });
        let fields = vec![("labels", labels), ("annotations", json!({ "note": "" }))];
        object["metadata"] = self.some_of(fields);
        object["apiVersion"] = json!(version);
        object["kind"] = json!(kind);
        object
    }
}

/// Requests that write a whole object.
#[derive(Clone, Copy, Debug)]
enum Request {
    Create,
    Apply,
    /// Replaces an object that exists, and that claims nothing.
    Update,
}

impl Request {
    /// The status code of a dry run in a namespace.
    fn send(self, shop: &Shop, namespace: &str, object: &Value) -> u16 {
        let mut object = object.clone();
        let name = match self {
            Self::Update => "kept",
            Self::Create | Self::Apply => "generated",
        };
        object["metadata"]["name"] = json!(name);
        object["metadata"]["namespace"] = json!(namespace);
        let collection = match object["kind"].as_str() {
            Some("Service") => format!("/api/v1/namespaces/{namespace}/services"),
            _ => format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"),
        };
        let (whole, apply) = ("application/json", "application/apply-patch+yaml");
        let path = format!("{collection}/{name}?dryRun=All&fieldManager=shop");
        code(match self {
            Self::Create => {
                let path = format!("{collection}?dryRun=All");
                shop.admin.post(&path, &object)
            }
            Self::Apply => shop.admin.request(Method::PATCH, &path, apply, &object),
            Self::Update => shop.admin.request(Method::PUT, &path, whole, &object),
        })
    }
}

/// Creates the objects that [`Request::Update`] replaces.
fn keep(shop: &Shop) {
    for namespace in ["shop", "pathproof"] {
        let metadata = json!({ "name": "kept", "namespace": namespace });
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": metadata,
            "spec": { "ports": [{ "port": 80 }] },
        });
        create(&shop.admin, service).expect("a Service");
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata,
            "addressType": "IPv4", "endpoints": [],
        });
        create(&shop.admin, slice).expect("a slice");
    }
}

#[test]
fn of_random_writes_only_claims_are_refused() {
    let shop = needs!(Shop::open());
    keep(&shop);
    let reserved = Reserved::of(&shop);
    let count: u64 = std::env::var(OBJECTS).map_or(200, |text| text.parse().expect(OBJECTS));
    let mut codes: BTreeMap<u16, u64> = BTreeMap::new();
    for seed in SEED..SEED + count {
        let mut generator = Generator::new(seed, &reserved);
        let object = match generator.rng.bool() {
            true => generator.service(),
            false => generator.slice(),
        };
        let requests = [Request::Create, Request::Apply, Request::Update];
        let request = requests[generator.rng.usize(..3)];
        let exempt = request.send(&shop, "pathproof", &object);
        let expected = match exempt {
            200 if reserved.is_claim(&object) => 403,
            other => other,
        };
        let found = request.send(&shop, "shop", &object);
        let yaml = serde_saphyr::to_string(&object).expect("YAML");
        assert_eq!(found, expected, "{request:?} with seed {seed}:\n{yaml}");
        *codes.entry(found).or_default() += 1;
    }
    // Enough of both for the test to mean something.
    for code in [200, 403] {
        let seen = codes.get(&code).copied().unwrap_or_default();
        assert!(seen >= count / 20, "{code}: {codes:?}");
    }
}
