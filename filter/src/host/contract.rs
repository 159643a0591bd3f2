//! What every [`SharedData`] must do: one suite for the fake and for the real Envoy.
//!
//! It uses a handful of keys, which are never freed, so run it under a prefix of its own.

use super::{Expect, SharedData, Versioned, Write};

/// Holds a store to its contract. The keys begin with `prefix`, which must never have been used before.
///
/// # Errors
/// Names the first promise that is not kept.
pub fn holds(shared: &impl SharedData, prefix: &str) -> Result<(), String> {
    creation(shared, &format!("{prefix}/creation"))?;
    versions(shared, &format!("{prefix}/versions"))?;
    overwriting(shared, &format!("{prefix}/overwriting"))?;
    emptying(shared, &format!("{prefix}/emptying"))?;
    sizes(shared, &format!("{prefix}/sizes"))
}

/// A key that was never written is absent, and of several creators one succeeds.
fn creation(shared: &impl SharedData, key: &str) -> Result<(), String> {
    promise("a key that was never written is absent", shared.shared_get(key) == Ok(None))?;
    promise("an absent key can be created", set(shared, key, b"first", Expect::Absent)? == Write::Done)?;
    promise(
        "a key is created once",
        set(shared, key, b"second", Expect::Absent)? == Write::Conflict
            && get(shared, key)?.value == b"first",
    )
}

/// Every write makes a version of its own, and only the version that is there can be replaced.
fn versions(shared: &impl SharedData, key: &str) -> Result<(), String> {
    let _ = set(shared, key, b"one", Expect::Absent)?;
    let one = get(shared, key)?;
    promise("reading changes no version", get(shared, key)? == one)?;
    promise(
        "the version that is there is replaced",
        set(shared, key, b"one", Expect::Version(one.cas))? == Write::Done,
    )?;
    let two = get(shared, key)?;
    promise("a write of equal bytes is a new version", two.cas != one.cas)?;
    promise(
        "a version that has passed conflicts",
        set(shared, key, b"late", Expect::Version(one.cas))? == Write::Conflict && get(shared, key)? == two,
    )?;
    let other = format!("{key}/other");
    let _ = set(shared, &other, b"x", Expect::Absent)?;
    promise("no two keys share a version", get(shared, &other)?.cas != two.cas)
}

/// An unconditional write takes place whatever is there, and is seen by who waits for a version.
fn overwriting(shared: &impl SharedData, key: &str) -> Result<(), String> {
    promise("anything goes on an absent key", set(shared, key, b"one", Expect::Anything)? == Write::Done)?;
    let one = get(shared, key)?;
    promise("anything goes on a present key", set(shared, key, b"two", Expect::Anything)? == Write::Done)?;
    promise(
        "an unconditional write is a new version",
        set(shared, key, b"three", Expect::Version(one.cas))? == Write::Conflict
            && get(shared, key)?.value == b"two",
    )
}

/// An emptied key is still there: nothing is freed, so it can't be created again.
fn emptying(shared: &impl SharedData, key: &str) -> Result<(), String> {
    let _ = set(shared, key, b"full", Expect::Absent)?;
    let full = get(shared, key)?;
    promise("a key can be emptied", set(shared, key, b"", Expect::Version(full.cas))? == Write::Done)?;
    let empty = get(shared, key)?;
    promise("an emptied key is there, under a new version", empty.value.is_empty() && empty.cas != full.cas)?;
    promise("an emptied key is not absent", set(shared, key, b"again", Expect::Absent)? == Write::Conflict)?;
    promise(
        "an emptied key can be filled",
        set(shared, key, b"again", Expect::Version(empty.cas))? == Write::Done,
    )
}

/// Values come back whole: a checkpoint's shard is the largest there is.
fn sizes(shared: &impl SharedData, key: &str) -> Result<(), String> {
    for size in [1, 255, 8 * 1024, 512 * 1024] {
        let value: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
        let _ = set(shared, key, &value, Expect::Anything)?;
        promise("a value comes back whole", get(shared, key)?.value == value)?;
    }
    Ok(())
}

fn promise(what: &str, kept: bool) -> Result<(), String> {
    if kept { Ok(()) } else { Err(format!("not kept: {what}")) }
}

fn get(shared: &impl SharedData, key: &str) -> Result<Versioned, String> {
    let there = shared.shared_get(key).map_err(|error| format!("{key}: {error}"))?;
    there.ok_or_else(|| format!("{key}: a key that was written is absent"))
}

fn set(shared: &impl SharedData, key: &str, value: &[u8], expect: Expect) -> Result<Write, String> {
    shared.shared_set(key, value, expect).map_err(|error| format!("{key}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::super::fake::{FakeHost, FakeShared};
    use super::*;
    use crate::host::HostResult;

    #[test]
    fn the_fake_keeps_the_contract() {
        assert_eq!(holds(&FakeShared::default(), "contract"), Ok(()));
        assert_eq!(holds(&FakeHost::default(), "contract"), Ok(()));
    }

    /// A store as it would be if Envoy's CAS of 0 were used to create keys: the second creator overwrites the first.
    struct Careless(FakeShared);

    impl SharedData for Careless {
        fn shared_get(&self, key: &str) -> HostResult<Option<Versioned>> {
            self.0.shared_get(key)
        }

        fn shared_set(&self, key: &str, value: &[u8], expect: Expect) -> HostResult<Write> {
            let expect = if expect == Expect::Absent { Expect::Anything } else { expect };
            self.0.shared_set(key, value, expect)
        }
    }

    #[test]
    fn the_suite_notices_a_broken_store() {
        let broken = holds(&Careless(FakeShared::default()), "contract");
        assert_eq!(broken, Err("not kept: a key is created once".to_owned()));
    }
}
