//! Accepting, refusing and reading exactly what the reference does.

use super::bodies::{body, value};
use super::reference::{Reference, Verdict};
use crate::request::{Endpoint, Limits, Reason, parse};
use proptest::prelude::*;
use proptest::sample::{Index, select};

fn ours(endpoint: Endpoint, body: &[u8], limits: &Limits) -> Verdict<Reference> {
    parse(endpoint, body, limits).map(|request| Reference::of(&request)).map_err(|error| error.to_string())
}

/// Both verdicts are the same, whatever the words of an error.
fn agree(endpoint: Endpoint, body: &str) -> Result<(), TestCaseError> {
    let limits = Limits { max_messages: 4, ..Limits::default() };
    match (ours(endpoint, body.as_bytes(), &limits), Reference::parse(endpoint, body, &limits)) {
        (Err(_), Err(_)) => {}
        (ours, reference) => prop_assert_eq!(ours, reference),
    }
    Ok(())
}

/// A change to a text.
#[derive(Debug, Clone)]
enum Edit {
    Remove(Index),
    Insert(Index, char),
    Truncate(Index),
    Double(Index, Index),
}

fn edit() -> impl Strategy<Value = Edit> {
    let token =
        select("{}[]\":,\\u0123abfnrteEtrue-+. \n\t\0\x01\u{1f}\u{feff}é".chars().collect::<Vec<_>>());
    prop_oneof![
        any::<Index>().prop_map(Edit::Remove),
        (any::<Index>(), token).prop_map(|(at, token)| Edit::Insert(at, token)),
        any::<Index>().prop_map(Edit::Truncate),
        (any::<Index>(), any::<Index>()).prop_map(|(a, b)| Edit::Double(a, b)),
    ]
}

fn apply(edit: &Edit, text: &mut Vec<char>) {
    let place = |at: &Index| at.index(text.len() + 1);
    match edit {
        Edit::Insert(at, token) => text.insert(place(at), *token),
        Edit::Truncate(at) => text.truncate(place(at)),
        Edit::Remove(at) if !text.is_empty() => {
            text.remove(at.index(text.len()));
        }
        Edit::Remove(_) => {}
        Edit::Double(a, b) => {
            let (a, b) = (place(a).min(place(b)), place(a).max(place(b)));
            let copy = text[a..b].to_vec();
            text.splice(b..b, copy);
        }
    }
}

proptest! {
    #[test]
    fn on_bodies((endpoint, body) in body()) {
        agree(endpoint, &body)?;
    }

    #[test]
    fn on_broken_bodies((endpoint, body) in body(), edits in prop::collection::vec(edit(), 1..4)) {
        let mut text: Vec<char> = body.chars().collect();
        for edit in &edits {
            apply(edit, &mut text);
        }
        agree(endpoint, &text.into_iter().collect::<String>())?;
    }

    #[test]
    fn on_any_value(value in value(), edits in prop::collection::vec(edit(), 0..3)) {
        let mut text: Vec<char> = value.chars().collect();
        for edit in &edits {
            apply(edit, &mut text);
        }
        let text: String = text.into_iter().collect();
        agree(Endpoint::Completions, &format!("{{\"prompt\":\"\",\"x\":{text}}}"))?;
    }

    /// Contents aren't checked for UTF-8, so a body of any bytes fares as if each that isn't ASCII were a letter, unless it
    /// stands in a name.
    #[test]
    fn on_bytes((endpoint, body) in body(), bytes in prop::collection::vec((any::<Index>(), any::<u8>()), 0..4)) {
        let mut body = body.into_bytes();
        for (at, byte) in bytes {
            let at = at.index(body.len());
            body[at] = byte;
        }
        let limits = Limits::default();
        let ascii: String = body.iter().map(|byte| if byte.is_ascii() { char::from(*byte) } else { '#' }).collect();
        let found = parse(endpoint, &body, &limits);
        if !matches!(found.as_ref().map_err(|error| error.reason), Err(Reason::NameNotText(_) | Reason::ByteOrderMark)) {
            prop_assert_eq!(found.is_ok(), Reference::parse(endpoint, &ascii, &limits).is_ok(), "{:?}", found);
        }
    }
}

/// A generator of bodies that are mostly refused would prove little.
#[test]
fn the_generator_makes_bodies_of_every_kind() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let mut kinds = std::collections::BTreeMap::<_, usize>::new();
    for _ in 0..500 {
        let (endpoint, body) = body().new_tree(&mut runner).unwrap().current();
        let kind =
            ours(endpoint, body.as_bytes(), &Limits::default()).map_or("refused", |found| found.prompt.0);
        *kinds.entry(kind).or_default() += 1;
    }
    for kind in ["chat", "text", "tokens", "refused"] {
        assert!(kinds.get(kind).is_some_and(|count| *count > 40), "{kinds:?}");
    }
}
