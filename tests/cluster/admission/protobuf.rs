//! Services and slices in the API's protobuf encoding, in which client-go and every Go controller write. The
//! field numbers are those of generated.proto in k8s.io/api and k8s.io/apimachinery.

pub(crate) const CONTENT_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// An EndpointSlice of IPv4 with one endpoint for each address. The encoding has no null: an empty list is an
/// absent one.
pub(crate) fn slice(name: &str, addresses: &[&str]) -> Vec<u8> {
    let mut message = text(1, &metadata(name));
    for address in addresses {
        message.extend(text(2, &text(1, address.as_bytes())));
    }
    message.extend(text(4, b"IPv4"));
    enveloped("discovery.k8s.io/v1", "EndpointSlice", &message)
}

/// A Service with one port.
pub(crate) fn service(name: &str, external_ips: &[&str], port: u16) -> Vec<u8> {
    let mut spec = text(1, &number(3, port));
    for address in external_ips {
        spec.extend(text(5, address.as_bytes()));
    }
    let message = [text(1, &metadata(name)), text(2, &spec)].concat();
    enveloped("v1", "Service", &message)
}

fn metadata(name: &str) -> Vec<u8> {
    [text(1, name.as_bytes()), text(3, b"shop")].concat()
}

/// The magic number, and a `runtime.Unknown` around the object.
fn enveloped(version: &str, kind: &str, object: &[u8]) -> Vec<u8> {
    let kind = [text(1, version.as_bytes()), text(2, kind.as_bytes())].concat();
    [b"k8s\0".to_vec(), text(1, &kind), text(2, object)].concat()
}

/// A field with a length before its content: text or a message.
fn text(field: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![(field << 3) | 2];
    bytes.extend(varint(content.len()));
    bytes.extend_from_slice(content);
    bytes
}

fn number(field: u8, value: u16) -> Vec<u8> {
    let mut bytes = vec![field << 3];
    bytes.extend(varint(usize::from(value)));
    bytes
}

/// Seven bits a byte, the lowest first. Every byte but the last one has the highest bit.
fn varint(mut value: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = u8::try_from(value & 0x7f).expect("seven bits");
        value >>= 7;
        if value == 0 {
            bytes.push(low);
            return bytes;
        }
        bytes.push(low | 0x80);
    }
}
