//! The endpoints that a gateway leaves to choose from, by the endpoint picker protocol.

use crate::host::{HeaderMap, Host};

/// Where the protocol has them: namespace and key of dynamic metadata, which no client can set.
const NAMESPACE: &str = "envoy.lb.subset_hint";
const KEY: &str = "x-gateway-destination-endpoint-subset";

/// A subset that was named: addresses with commas between. It may be empty: then nobody is left.
#[derive(Debug)]
pub struct Subset(Vec<u8>);

impl Subset {
    /// What the gateway says of the current request, if it says anything. What can't be read names nobody.
    pub fn read(host: &impl Host) -> Option<Self> {
        host.property(&["metadata", "filter_metadata", NAMESPACE, KEY])
            .unwrap_or(Some(Vec::new()))
            .map(Self::new)
    }

    /// They come as one text with commas, or as a list, which Envoy hands over as it does headers; an address has no zero byte.
    fn new(value: Vec<u8>) -> Self {
        if !value.contains(&0) {
            return Self(value);
        }
        let list = HeaderMap::from_wire(value);
        Self(list.iter().map(|(item, _)| item).collect::<Vec<_>>().join(&b','))
    }

    /// Whether a pod's address is among them.
    pub fn has(&self, address: &str) -> bool {
        self.0.split(|byte| *byte == b',').any(|text| text.trim_ascii() == address.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_texts_say_the_same() {
        let list = |items: &[&str]| {
            let pairs = items.iter().map(|item| (item.as_bytes(), &b""[..]));
            Subset::new(HeaderMap::to_wire(pairs))
        };
        let text = |text: &str| Subset::new(text.into());
        for subset in [
            text("10.0.0.1:80, [::1]:81"),
            list(&["10.0.0.1:80", "[::1]:81"]),
            list(&["10.0.0.1:80,[::1]:81"]),
        ] {
            assert!(subset.has("10.0.0.1:80") && subset.has("[::1]:81"), "{subset:?}");
            assert!(!subset.has("10.0.0.1:8") && !subset.has("10.0.0.2:80"), "{subset:?}");
        }
        for nobody in [
            text(""),
            text(" , "),
            list(&[]),
            Subset::new(vec![0]),
            Subset::new([vec![255; 9], vec![0]].concat()),
        ] {
            assert!(!nobody.has("10.0.0.1:80"), "{nobody:?}");
        }
    }
}
