//! What Envoy says of the endpoints of its clusters: the answer of its admin to `GET /clusters?format=json`.
//!
//! It is the JSON of `envoy.admin.v3.Clusters`, which leaves out whatever has its default. Of an endpoint's metadata
//! nothing is in it.

use serde::de::{Deserialize, Deserializer, IgnoredAny, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::net::{IpAddr, SocketAddr};

/// Most endpoints of one answer that are read; more are passed over.
pub const MAX_FOUND: usize = 4096;
/// Longest name of a cluster, a host or a zone that is taken: what [`Board`](super::Board) can carry.
const MAX_TEXT: usize = 255;
/// Most characters of an error: it may quote what was read.
const MAX_ERROR: usize = 300;

/// One endpoint of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Found {
    /// The cluster's name.
    pub cluster: String,
    /// Where it listens. `None` for pipes, internal listeners and whatever else has no IP address.
    pub address: Option<SocketAddr>,
    /// What the control plane, or the configuration, calls it; empty where it has no name.
    pub hostname: String,
    /// The zone of its locality; empty where it has none.
    pub zone: String,
    /// Its share of the cluster's load, as Envoy has it: 1 where nothing was said.
    pub weight: u32,
    /// Whether requests should go there.
    pub healthy: bool,
}

/// Reads an answer, in the order in which Envoy wrote it (which changes from one to the next). The error says what is
/// wrong and where.
pub fn read(json: &[u8]) -> Result<Vec<Found>, String> {
    if !json.trim_ascii_start().starts_with(b"{") {
        // Serde would take a list for an object, and an empty one for the answer that there are no clusters.
        return Err("no JSON object".to_owned());
    }
    let answer: Answer = serde_json::from_slice(json)
        .map_err(|error| error.to_string().chars().take(MAX_ERROR).collect::<String>())?;
    Ok(answer.cluster_statuses.0)
}

#[derive(serde::Deserialize)]
struct Answer {
    #[serde(default)]
    cluster_statuses: Clusters,
}

/// The endpoints of all clusters. They are read cluster by cluster, so that no more is in memory than is kept.
#[derive(Default)]
struct Clusters(Vec<Found>);

impl<'de> Deserialize<'de> for Clusters {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ClustersVisitor)
    }
}

struct ClustersVisitor;

impl<'de> Visitor<'de> for ClustersVisitor {
    type Value = Clusters;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of clusters")
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Clusters, S::Error> {
        let mut found = Vec::new();
        while let Some(cluster) = list.next_element::<RawCluster<'de>>()? {
            if cluster.name.len() <= MAX_TEXT {
                let room = MAX_FOUND.saturating_sub(found.len());
                let hosts =
                    cluster.host_statuses.0.iter().filter(|host| !host.health_status.pending_dynamic_removal);
                found.extend(hosts.take(room).map(|host| host.found(&cluster.name)));
            }
        }
        Ok(Clusters(found))
    }
}

#[derive(serde::Deserialize)]
struct RawCluster<'a> {
    #[serde(default, borrow)]
    name: Cow<'a, str>,
    #[serde(default, borrow)]
    host_statuses: Capped<RawHost<'a>>,
}

/// At most [`MAX_FOUND`] elements of a list.
struct Capped<T>(Vec<T>);

impl<T> Default for Capped<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Capped<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(CappedVisitor(PhantomData))
    }
}

struct CappedVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for CappedVisitor<T> {
    type Value = Capped<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Self::Value, S::Error> {
        let mut first = Vec::new();
        while first.len() < MAX_FOUND {
            match list.next_element()? {
                Some(one) => first.push(one),
                None => return Ok(Capped(first)),
            }
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Capped(first))
    }
}

#[derive(serde::Deserialize)]
struct RawHost<'a> {
    #[serde(default, borrow)]
    address: RawAddress<'a>,
    #[serde(default, borrow)]
    health_status: RawHealth<'a>,
    #[serde(default)]
    weight: u32,
    #[serde(default, borrow)]
    hostname: Cow<'a, str>,
    #[serde(default, borrow)]
    locality: RawLocality<'a>,
}

impl RawHost<'_> {
    fn found(&self, cluster: &str) -> Found {
        let text = |text: &str| if text.len() <= MAX_TEXT { text.to_owned() } else { String::new() };
        Found {
            cluster: cluster.to_owned(),
            address: self.address.socket_address.parse(),
            hostname: text(&self.hostname),
            zone: text(&self.locality.zone),
            weight: self.weight.max(1),
            healthy: self.health_status.serves(),
        }
    }
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct RawAddress<'a> {
    #[serde(borrow)]
    socket_address: RawSocketAddress<'a>,
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct RawSocketAddress<'a> {
    #[serde(borrow)]
    address: Cow<'a, str>,
    port_value: u32,
}

impl RawSocketAddress<'_> {
    fn parse(&self) -> Option<SocketAddr> {
        let ip: IpAddr = self.address.parse().ok()?;
        Some(SocketAddr::new(ip, u16::try_from(self.port_value).ok().filter(|port| *port != 0)?))
    }
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct RawLocality<'a> {
    #[serde(borrow)]
    zone: Cow<'a, str>,
}

/// What else there is says the same (`active_hc_timeout` stands only beside `failed_active_health_check`), or that the
/// host serves, if not well (`failed_active_degraded_check`).
#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct RawHealth<'a> {
    failed_active_health_check: bool,
    failed_outlier_check: bool,
    pending_dynamic_removal: bool,
    pending_active_hc: bool,
    excluded_via_immediate_hc_fail: bool,
    #[serde(borrow)]
    eds_health_status: Cow<'a, str>,
}

impl RawHealth<'_> {
    /// What Envoy's own balancers would send to, less the hosts that are leaving. Those that service discovery has dropped are
    /// not even found: Envoy sends on to them for as long as they pass checks, but what is started there now warms a cache that
    /// is about to go.
    fn serves(&self) -> bool {
        // Envoy takes a host whose first check is outstanding as one that failed: it sets both flags.
        let unchecked = self.pending_active_hc;
        let leaving = self.excluded_via_immediate_hc_fail;
        let failed = self.failed_active_health_check || self.failed_outlier_check;
        let told = matches!(&*self.eds_health_status, "UNHEALTHY" | "DRAINING" | "TIMEOUT");
        !(failed || unchecked || leaving || told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What Envoy 1.40 answered; admin-clusters.yaml says to what.
    const REAL: &[u8] = include_bytes!("../../tests/data/admin-clusters-1.40.json");

    fn host(fields: &str) -> Found {
        let json = format!(r#"{{"cluster_statuses": [{{"name": "c", "host_statuses": [{{{fields}}}]}}]}}"#);
        read(json.as_bytes()).unwrap().pop().unwrap()
    }

    #[test]
    fn a_real_answer() {
        let found = read(REAL).unwrap();
        let lines: Vec<_> = found
            .iter()
            .map(|Found { cluster, address, hostname, zone, weight, healthy }| {
                let address = address.map_or("-".to_owned(), |address| address.to_string());
                format!("{cluster} {address} {hostname:?} {zone:?} {weight} {healthy}")
            })
            .collect();
        let expected = [
            r#"outbound|8000||other.svc 10.9.9.9:80 "" "" 1 true"#,
            r#"engine-a 127.0.0.1:19932 "" "" 1 false"#,
            r#"engine-a 127.0.0.1:19931 "engine-a-1.llm" "" 1 true"#,
            r#"pods 127.0.0.1:8001 "prefill-0.llm" "z1" 3 true"#,
            r#"pods 10.0.1.2:8000 "prefill-1.llm" "z1" 1 true"#,
            r#"pods [fd00::1]:8000 "decode-0.llm" "z2" 1 true"#,
            r#"pods 10.0.1.4:8000 "decode-1.llm" "z2" 1 false"#,
            r#"pods 10.0.1.5:8000 "" "z2" 1 false"#,
            r#"pods 10.0.1.6:8000 "" "z2" 1 false"#,
            r#"pods - "" "z2" 1 true"#,
            r#"pods [::ffff:10.0.1.7]:8000 "" "z2" 1 true"#,
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn who_is_healthy() {
        for (flags, healthy) in [
            ("", true),
            (r#""eds_health_status": "HEALTHY""#, true),
            (r#""eds_health_status": "DEGRADED""#, true),
            (r#""eds_health_status": "TO COME""#, true),
            (r#""eds_health_status": "UNHEALTHY""#, false),
            (r#""eds_health_status": "DRAINING""#, false),
            (r#""eds_health_status": "TIMEOUT""#, false),
            (r#""failed_active_degraded_check": true"#, true),
            (r#""failed_active_health_check": false"#, true),
            (r#""failed_active_health_check": true"#, false),
            (r#""failed_outlier_check": true"#, false),
            (r#""pending_active_hc": true"#, false),
            (r#""excluded_via_immediate_hc_fail": true"#, false),
            (r#""failed_active_health_check": true, "active_hc_timeout": true"#, false),
        ] {
            assert_eq!(host(&format!(r#""health_status": {{{flags}}}"#)).healthy, healthy, "{flags}");
        }
    }

    #[test]
    fn what_is_left_out_or_odd() {
        let nothing = Found {
            cluster: "c".into(),
            address: None,
            hostname: String::new(),
            zone: String::new(),
            weight: 1,
            healthy: true,
        };
        assert_eq!(host(""), nothing);
        for address in [
            r#"{"pipe": {"path": "/run/x"}}"#,
            r#"{"envoy_internal_address": {"server_listener_name": "x"}}"#,
            r#"{"socket_address": {"address": "localhost", "port_value": 1}}"#,
            r#"{"socket_address": {"address": "10.0.0.1"}}"#,
            r#"{"socket_address": {"address": "10.0.0.1", "port_value": 65536}}"#,
            r#"{"socket_address": {"address": "10.0.0.1", "named_port": "http"}}"#,
        ] {
            assert_eq!(host(&format!(r#""address": {address}"#)), nothing, "{address}");
        }
        assert_eq!(read(b"{}\n"), Ok(Vec::new()));
        let dropped = br#"{"cluster_statuses": [{"name": "c", "host_statuses": [{"health_status": {"pending_dynamic_removal": true}}]}]}"#;
        assert_eq!(read(dropped), Ok(Vec::new()), "service discovery has dropped it");
        assert_eq!(read(br#"{"cluster_statuses": [{"name": "c"}, {}]}"#), Ok(Vec::new()));
        // Names with escapes are no slices of the answer.
        assert_eq!(host(r#""hostname": "a\u0062\n""#).hostname, "ab\n");
        for wrong in ["", "[]", "{", r#"{"cluster_statuses": 3}"#, r#"{"cluster_statuses": [{"name": 3}]}"#] {
            assert!(read(wrong.as_bytes()).is_err(), "{wrong}");
        }
        let long = format!(r#"{{"cluster_statuses": {:?}}}"#, "x".repeat(100_000));
        assert!(read(long.as_bytes()).unwrap_err().len() <= MAX_ERROR);
    }

    #[test]
    fn hosts_and_names_are_bounded() {
        let cluster = |name: &str, hosts: usize| {
            let hosts = vec![r#"{"hostname": "h"}"#; hosts].join(",");
            format!(r#"{{"host_statuses": [{hosts}], "name": "{name}"}}"#)
        };
        let answer = |clusters: &[String]| {
            let json = format!(r#"{{"cluster_statuses": [{}], "later": 1}}"#, clusters.join(","));
            read(json.as_bytes()).unwrap()
        };
        assert_eq!(answer(&[cluster("a", 5000)]).len(), MAX_FOUND);
        let both = answer(&[cluster("a", 4000), cluster("b", 4000), cluster("c", 1)]);
        assert_eq!((both.len(), both.last().unwrap().cluster.as_str()), (MAX_FOUND, "b"));
        let long = "x".repeat(MAX_TEXT + 1);
        assert_eq!(answer(&[cluster(&long, 3), cluster("b", 1)]).len(), 1);
        assert_eq!(host(&format!(r#""hostname": "{long}""#)).hostname, "");
    }

    proptest! {
        #[test]
        fn no_bytes_harm(
            cut in 0..REAL.trim_ascii().len(),
            changes in prop::collection::vec((0..REAL.len(), any::<u8>()), 0..6),
            noise in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let mut bytes = REAL.to_vec();
            changes.iter().for_each(|(at, byte)| bytes[*at] = *byte);
            let whole = read(&bytes);
            prop_assert!(whole.is_err() || whole.unwrap().len() <= MAX_FOUND);
            prop_assert!(read(&REAL[..cut]).is_err());
            let _ = read(&noise);
        }
    }
}
