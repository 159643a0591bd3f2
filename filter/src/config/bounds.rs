//! Ranges of numbers: each stands in one place, for the check and for the schema.

use super::mistake::Mistakes;
use schemars::Schema;
use serde_json::Value;
use std::fmt::Display;

/// The numbers that a field may have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds<T> {
    low: T,
    high: T,
    /// Is `low` itself too little?
    open: bool,
}

impl<T> Bounds<T> {
    /// From `low` to `high`, both included.
    pub const fn new(low: T, high: T) -> Self {
        Self { low, high, open: false }
    }

    /// More than `low`, and up to `high`.
    pub const fn above(low: T, high: T) -> Self {
        Self { low, high, open: true }
    }
}

impl<T: PartialOrd + Display> Bounds<T> {
    /// What is wrong with a number, if it is none of these, and the cure.
    pub fn problem(&self, value: &T) -> Option<String> {
        let enough = if self.open { self.low < *value } else { self.low <= *value };
        let is_within = enough && *value <= self.high;
        (!is_within).then(|| format!("{value} is out of range; {}", self.cure()))
    }

    /// What to give.
    pub fn cure(&self) -> String {
        match self {
            Self { low, high, open: false } => format!("give {low} to {high}"),
            Self { low, high, open: true } => format!("give more than {low}, and up to {high}"),
        }
    }
}

impl<T: Display> Bounds<T> {
    /// What writes the range into the schema of a field: `#[schemars(transform = BOUNDS.schema())]`.
    pub fn schema(self) -> impl FnMut(&mut Schema) {
        // By its digits: as a double, an f32 would have some that nobody wrote.
        let number = |bound: &T| serde_json::from_str(&bound.to_string()).unwrap_or(Value::Null);
        let (low, high) = (number(&self.low), number(&self.high));
        move |schema| {
            schema.remove("minimum"); // That of unsigned types.
            let key = if self.open { "exclusiveMinimum" } else { "minimum" };
            schema.insert(key.to_owned(), low.clone());
            schema.insert("maximum".to_owned(), high.clone());
        }
    }

    /// The same, for the values of an object with free names.
    pub fn schema_of_values(self) -> impl FnMut(&mut Schema) {
        let mut write = self.schema();
        move |schema| {
            if let Some(values) = schema.get_mut("additionalProperties").and_then(|one| one.try_into().ok()) {
                write(values);
            }
        }
    }
}

/// Reports a number, if there is one, outside its range.
pub(super) fn within<T: PartialOrd + Display>(
    path: &str,
    value: impl Into<Option<T>>,
    bounds: Bounds<T>,
    mistakes: &mut Mistakes,
) {
    if let Some(problem) = value.into().and_then(|value| bounds.problem(&value)) {
        mistakes.add(path, problem);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_is_told_with_the_cure() {
        let (closed, open) = (Bounds::new(1, 3), Bounds::above(0.0, 1.0));
        assert_eq!([0, 1, 3, 4].map(|n| closed.problem(&n).is_none()), [false, true, true, false]);
        let share = [f32::NAN, 0.0, f32::MIN_POSITIVE, 1.0, 1.5];
        assert_eq!(share.map(|n| open.problem(&n).is_none()), [false, false, true, true, false]);
        assert_eq!(closed.problem(&9).as_deref(), Some("9 is out of range; give 1 to 3"));
        let cure = "0 is out of range; give more than 0, and up to 1";
        assert_eq!(open.problem(&0.0).as_deref(), Some(cure));
    }

    #[test]
    fn the_schema_has_the_digits_that_were_written() {
        let mut schema = schemars::json_schema!({"type": "number", "minimum": 0});
        Bounds::<f32>::new(0.01, 100.0).schema()(&mut schema);
        let expected = serde_json::json!({"type": "number", "minimum": 0.01, "maximum": 100});
        assert_eq!(schema.to_value(), expected);
        let mut schema = schemars::json_schema!({"additionalProperties": {"minimum": 0}});
        Bounds::above(0, 7).schema_of_values()(&mut schema);
        let expected = serde_json::json!({"additionalProperties": {"exclusiveMinimum": 0, "maximum": 7}});
        assert_eq!(schema.to_value(), expected);
    }
}
