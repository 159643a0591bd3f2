//! The endpoints that a gateway leaves to choose from, by the endpoint picker protocol.

use crate::host::{HeaderMap, Host};
use std::borrow::Cow;

/// Where the protocol has them: namespace and key of dynamic metadata, which no client can set.
const NAMESPACE: &str = "envoy.lb.subset_hint";
const KEY: &str = "x-gateway-destination-endpoint-subset";

/// A subset that was named. It may be empty: then nobody is left.
#[derive(Debug)]
pub struct Subset(Vec<u8>);

impl Subset {
    /// What the gateway says of the current request, if it says anything.
    pub fn read(host: &impl Host) -> Option<Self> {
        host.property(&["metadata", "filter_metadata", NAMESPACE, KEY]).ok().flatten().map(Self)
    }

    /// Whether a pod's address is among them. They come as a list, or as one text with commas.
    pub fn has(&self, address: &str) -> bool {
        // Envoy hands a list over as it does headers; an address has no zero byte.
        let texts = if self.0.contains(&0) {
            let list = HeaderMap::from_wire(self.0.clone());
            Cow::Owned(list.iter().map(|(item, _)| item).collect::<Vec<_>>().join(&b','))
        } else {
            Cow::Borrowed(&self.0)
        };
        texts.split(|byte| *byte == b',').any(|text| text.trim_ascii() == address.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_texts_say_the_same() {
        let list = |items: &[&str]| {
            let pairs = items.iter().map(|item| (item.as_bytes(), &b""[..]));
            Subset(HeaderMap::to_wire(pairs))
        };
        let text = |text: &str| Subset(text.into());
        for subset in [
            text("10.0.0.1:80, [::1]:81"),
            list(&["10.0.0.1:80", "[::1]:81"]),
            list(&["10.0.0.1:80,[::1]:81"]),
        ] {
            assert!(subset.has("10.0.0.1:80") && subset.has("[::1]:81"), "{subset:?}");
            assert!(!subset.has("10.0.0.1:8") && !subset.has("10.0.0.2:80"), "{subset:?}");
        }
        for nobody in [text(""), text(" , "), list(&[]), Subset(vec![0]), Subset(vec![255; 9])] {
            assert!(!nobody.has("10.0.0.1:80"), "{nobody:?}");
        }
    }
}
