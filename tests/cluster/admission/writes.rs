//! Writes of other users in every format that clients use. The policies must refuse the claims among them and
//! nothing else.
//!
//! The API server passes null to an expression for an empty list whose field in Go has no `omitempty`. Among
//! the fields that the expressions read, these are `endpoints` and `ports` of a slice, and `addresses` of an
//! endpoint, which the API server itself requires.

use super::*;
use crate::rights::event;
use crate::scene::NODE;

const WRITTEN: &str = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices/written";
const JSON: &str = "application/json";

#[derive(Clone, Copy, Debug)]
enum Format {
    Json,
    /// Server-side apply. The body is JSON, which is also YAML.
    Apply,
    Protobuf,
    Merge,
    Strategic,
    JsonPatch,
}

/// Formats of a whole object, which can also create it.
const WHOLE: [Format; 3] = [Format::Json, Format::Apply, Format::Protobuf];
const ALL: [Format; 6] = [
    Format::Json,
    Format::Apply,
    Format::Protobuf,
    Format::Merge,
    Format::Strategic,
    Format::JsonPatch,
];

/// The lists of a slice: absent, or these values.
#[derive(Clone, Debug)]
struct Lists {
    endpoints: Option<Value>,
    ports: Option<Value>,
}

impl Lists {
    fn same(value: Option<Value>) -> Self {
        Self {
            endpoints: value.clone(),
            ports: value,
        }
    }

    /// One endpoint and one port.
    fn of(address: &str) -> Self {
        Self {
            endpoints: Some(json!([{ "addresses": [address] }])),
            ports: Some(json!([{ "port": 80 }])),
        }
    }

    fn fields(&self) -> [(&'static str, &Option<Value>); 2] {
        [("endpoints", &self.endpoints), ("ports", &self.ports)]
    }

    /// An object with those of the lists that are not absent.
    fn change(&self) -> Value {
        let mut change = json!({});
        for (field, value) in self.fields() {
            if let Some(value) = value {
                change[field] = value.clone();
            }
        }
        change
    }

    fn whole(&self) -> Value {
        let mut slice = self.change();
        slice["apiVersion"] = json!("discovery.k8s.io/v1");
        slice["kind"] = json!("EndpointSlice");
        slice["metadata"] = json!({ "name": "written", "namespace": "shop" });
        slice["addressType"] = json!("IPv4");
        slice
    }

    fn json_patch(&self) -> Value {
        let step = |(field, value): (&str, &Option<Value>)| {
            let path = format!("/{field}");
            match value {
                Some(value) => json!({ "op": "add", "path": path, "value": value }),
                None => json!({ "op": "remove", "path": path }),
            }
        };
        self.fields().into_iter().map(step).collect()
    }

    fn protobuf(&self) -> Vec<u8> {
        let address = |endpoints: &Value| endpoints[0]["addresses"][0].as_str().map(str::to_owned);
        let address = self.endpoints.as_ref().and_then(address);
        protobuf::slice("written", address.as_deref().as_slice())
    }
}

impl Format {
    fn create(self, shop: &Shop, lists: &Lists) -> u16 {
        let api = &shop.admin;
        match self {
            Self::Apply => self.update(shop, lists),
            Self::Protobuf => post(shop, SLICES, lists.protobuf()),
            _ => code(api.post(SLICES, &lists.whole())),
        }
    }

    fn update(self, shop: &Shop, lists: &Lists) -> u16 {
        let send = |method, content_type, body: &Value| {
            code(shop.admin.request(method, WRITTEN, content_type, body))
        };
        let strategic = "application/strategic-merge-patch+json";
        match self {
            Self::Json => send(Method::PUT, JSON, &lists.whole()),
            Self::Apply => code(shop.admin.apply(&lists.whole())),
            Self::Protobuf => {
                let body = lists.protobuf();
                let kind = protobuf::CONTENT_TYPE;
                code(shop.admin.request_bytes(Method::PUT, WRITTEN, kind, body))
            }
            Self::Merge => send(Method::PATCH, MERGE, &lists.change()),
            Self::Strategic => send(Method::PATCH, strategic, &lists.change()),
            Self::JsonPatch => {
                let kind = "application/json-patch+json";
                send(Method::PATCH, kind, &lists.json_patch())
            }
        }
    }
}

/// Creates an object in protobuf.
fn post(shop: &Shop, collection: &str, body: Vec<u8>) -> u16 {
    let kind = protobuf::CONTENT_TYPE;
    code(
        shop.admin
            .request_bytes(Method::POST, collection, kind, body),
    )
}

#[test]
fn no_format_of_an_innocent_write_is_refused() {
    let shop = needs!(Shop::open());
    slices_in_every_format(&shop);
    services_in_protobuf(&shop);
    writes_of_kinds_that_pathproofs_accounts_write(&shop);
    large_objects_pass(&shop);
    a_policy_without_its_kind_of_parameter_refuses_nothing(&shop);
}

fn slices_in_every_format(shop: &Shop) {
    let one = Lists::of("192.0.2.21");
    let claim = Lists::of("198.18.0.2");
    let label = json!({ "metadata": { "labels": { "shop": "yes" } } });
    let states = [
        Lists::same(None),
        Lists::same(Some(Value::Null)),
        Lists::same(Some(json!([]))),
        one.clone(),
    ];
    for create in WHOLE {
        assert_eq!(create.create(shop, &claim), 403, "{create:?}");
        for state in &states {
            assert_eq!(create.create(shop, state), 200, "{create:?}: {state:?}");
            assert_eq!(shop.patch(WRITTEN, &label), 200, "{create:?}: {state:?}");
            for update in ALL {
                for (lists, expected) in [(&one, 200), (&claim, 403), (state, 200)] {
                    let found = update.update(shop, lists);
                    assert_eq!(found, expected, "{create:?}, {update:?}: {lists:?}");
                }
            }
            shop.admin.delete(WRITTEN).expect("delete a slice");
        }
    }
}

fn services_in_protobuf(shop: &Shop) {
    for (name, ips, port, expected) in [
        ("none", &[][..], 10256, 200),
        ("innocent", &["192.0.2.7"], 80, 200),
        ("address", &["198.18.0.2"], 80, 403),
        ("port", &["192.0.2.7"], 10256, 403),
    ] {
        let body = protobuf::service(name, ips, port);
        assert_eq!(post(shop, SERVICES, body), expected, "{name}");
    }
}

/// The policies that restrict what pathproof's accounts write do not restrict other users, even if these
/// write objects of the same kinds.
fn writes_of_kinds_that_pathproofs_accounts_write(shop: &Shop) {
    let admin = &shop.admin;
    let conditions = json!({ "conditions": null });
    let written = admin.patch_node_status(NODE_NAME, &conditions);
    assert_eq!(code(written), 200, "{conditions}");
    let label = json!({ "metadata": { "labels": { "shop": "yes" } } });
    assert_eq!(shop.patch(NODE, &label), 200);
    let leases = "/apis/coordination.k8s.io/v1/namespaces/shop/leases";
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": "shop", "namespace": "shop" },
    });
    assert_eq!(code(admin.post(leases, &lease)), 200);
    let mut other = event("default", NODE_NAME);
    other["reportingController"] = json!("shop.example/robot");
    let events = "/apis/events.k8s.io/v1/namespaces/default/events";
    assert_eq!(code(admin.post(events, &other)), 200);
}

/// The API accepts 100 addresses in each of 1,000 endpoints, more than an expression may read, and 60,000
/// external IPs of a Service, which would take longer than clients wait. The rule for ports reads no address.
fn large_objects_pass(shop: &Shop) {
    let address = |at: usize| format!("10.{}.{}.{}", at >> 16, (at >> 8) & 255, at & 255);
    let endpoint = |number: usize| {
        let addresses: Vec<String> = (0..100).map(|at| address(number * 100 + at)).collect();
        json!({ "addresses": addresses })
    };
    let endpoints: Vec<Value> = (0..1_000).map(endpoint).collect();
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "name": "large", "namespace": "shop" }, "endpoints": endpoints,
    });
    let dry_run = |collection: &str, object: &Value| {
        code(shop.admin.post(&format!("{collection}?dryRun=All"), object))
    };
    assert_eq!(dry_run(SLICES, &slice), 200, "a large slice");
    let external_ips: Vec<String> = (0..60_000).map(address).collect();
    for (port, expected) in [(80, 200), (10256, 403)] {
        let service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": "large", "namespace": "shop" },
            "spec": { "externalIPs": external_ips, "ports": [{ "port": port }] },
        });
        assert_eq!(dry_run(SERVICES, &service), expected, "port {port}");
    }
}

/// While the API server cannot find or list the kind of the parameters, the policy decides nothing.
fn a_policy_without_its_kind_of_parameter_refuses_nothing(shop: &Shop) {
    let policy = format!("{POLICIES}/pathproof-reserved-services");
    let kind = json!({ "apiVersion": "shop.example/v1", "kind": "Missing" });
    let change = json!({ "spec": { "paramKind": kind } });
    assert_eq!(shop.patch(&policy, &change), 200);
    let claim = external(&["198.18.0.2"], 80);
    let passes = until(PATIENCE, || (shop.try_service(&claim) == 200).then_some(()));
    assert!(passes.is_some(), "a claim is refused");
    assert_eq!(shop.try_service(&external(&["192.0.2.7"], 80)), 200);
}
