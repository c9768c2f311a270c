//! How often two datagrams cannot be distinguished, which is the documented error of matching by payload
//! (docs/internal/design/evidence.md#udp).

use std::collections::VecDeque;

use pathproof_wire::packet::udp::{HASHED, payload_hash};
use rstest::rstest;

/// Maximum number of datagrams followed per second (`abi::UDP_PER_WINDOW` in 134 ms).
const RATE: usize = 953;
/// Number of datagrams that are followed at the same time: at that rate, each for the 1.5 s of an answered
/// one.
const FOLLOWED: usize = RATE * 3 / 2;
const QUESTIONS: usize = 400_000;

/// Names that pods query: Services in each of the search domains, and outside names, to which `ndots:5`
/// also appends the search domains.
fn names() -> Vec<String> {
    let services = [
        "kubernetes",
        "orders",
        "orders-db",
        "cart",
        "payments",
        "checkout",
        "users",
        "auth-service",
        "inventory",
        "frontend",
        "redis-master",
        "kafka-bootstrap",
        "prometheus-operated",
        "api.example.com",
        "storage.googleapis.com",
        "sqs.eu-central-1.amazonaws.com",
    ];
    let domains = [
        "",
        ".default.svc.cluster.local",
        ".svc.cluster.local",
        ".cluster.local",
    ];
    let names = services.iter();
    names
        .flat_map(|name| domains.map(|domain| format!("{name}{domain}")))
        .collect()
}

/// A query as glibc and musl send it.
fn question(id: u16, name: &str, kind: u8) -> Vec<u8> {
    let mut bytes = id.to_be_bytes().to_vec();
    bytes.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.') {
        bytes.push(label.len() as u8);
        bytes.extend(label.bytes());
    }
    bytes.extend([0, 0, kind, 0, 1]);
    bytes
}

fn hash(payload: &[u8]) -> u32 {
    payload_hash(&payload, 0, payload.len() as u32).expect("all of it is there")
}

/// xorshift64*, the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

/// Share of queries, at the full rate, whose hash equals that of another query that is still followed.
fn share_of_collisions(names: &[String]) -> f64 {
    let mut random = Random(0x5eed);
    let mut followed = VecDeque::new();
    let mut standing = std::collections::HashMap::<u32, u32>::new();
    let mut collided = 0;
    for _ in 0..QUESTIONS {
        let id = (random.next() >> 48) as u16;
        let name = &names[(random.next() >> 32) as usize % names.len()];
        let kind = if random.next() >> 63 == 0 { 1 } else { 28 };
        let hash = hash(&question(id, name, kind));
        collided += u32::from(standing.contains_key(&hash));
        *standing.entry(hash).or_default() += 1;
        followed.push_back(hash);
        if followed.len() > FOLLOWED
            && let Some(oldest) = followed.pop_front()
            && let Some(count) = standing.get_mut(&oldest)
        {
            *count -= 1;
            if *count == 0 {
                standing.remove(&oldest);
            }
        }
    }
    f64::from(collided) / QUESTIONS as f64
}

/// There are at most as many collisions as there are equal 16-bit ids (birthday problem). Equal ids with
/// different names do not collide.
#[test]
fn dns_at_the_full_rate() {
    let by_ids = FOLLOWED as f64 / 65_536.0;
    let one = share_of_collisions(&["orders.default.svc.cluster.local".to_owned()]);
    let many = share_of_collisions(&names());
    println!(
        "one name {:.2} %, names of a cluster {:.2} %",
        one * 100.0,
        many * 100.0
    );
    assert!(one < by_ids * 1.1, "{one}");
    assert!(many < by_ids / 10.0, "{many}");
}

#[rstest]
#[case::a_byte_of_the_beginning(40, 3, false)]
#[case::the_last_hashed_byte(40, HASHED - 1, false)]
#[case::behind(40, HASHED, true)]
#[case::of_a_short_one(12, 11, false)]
#[case::of_a_last_half_word(14, 13, true)]
fn the_hash_covers_the_beginning_and_the_length(
    #[case] length: usize,
    #[case] changed: usize,
    #[case] same: bool,
) {
    let payload = vec![7; length];
    let mut other = payload.clone();
    other[changed] ^= 1;
    assert_eq!(hash(&payload) == hash(&other), same);
    let longer = [payload.as_slice(), &[7]].concat();
    assert_ne!(hash(&payload), hash(&longer), "the length counts");
}

#[test]
fn a_payload_shorter_than_stated_has_no_hash() {
    for length in 0..48 {
        let payload = vec![1; length];
        for said in 0..48 {
            let hash = payload_hash(&payload.as_slice(), 0, said);
            assert_eq!(
                hash.is_none(),
                (said.min(HASHED as u32) & !3) as usize > length
            );
        }
    }
}
