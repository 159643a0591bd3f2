//! `strftime_now` of chat templates: the date of the engine's clock, which is taken to be ours, in UTC.

use std::fmt::Write as _;
use std::time::Duration;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// A time since the epoch, as `strftime` formats it. A directive that isn't known stays as it is.
pub fn strftime(format: &str, now: Duration) -> String {
    let seconds = now.as_secs();
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day, of_year) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let name = |names: &[&'static str], n: u64| names.get(n as usize).copied().unwrap_or("");
    let short = |name: &'static str| name.get(..3).unwrap_or(name);
    let (month_name, day_name) = (name(&MONTHS, month - 1), name(&DAYS, days % 7));
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let _ = match chars.next() {
            Some('Y') => write!(out, "{year}"),
            Some('y') => write!(out, "{:02}", year % 100),
            Some('m') => write!(out, "{month:02}"),
            Some('d') => write!(out, "{day:02}"),
            Some('e') => write!(out, "{day:2}"),
            Some('j') => write!(out, "{of_year:03}"),
            Some('B') => write!(out, "{month_name}"),
            Some('b' | 'h') => write!(out, "{}", short(month_name)),
            Some('A') => write!(out, "{day_name}"),
            Some('a') => write!(out, "{}", short(day_name)),
            Some('H') => write!(out, "{hour:02}"),
            Some('I') => write!(out, "{:02}", (hour + 11) % 12 + 1),
            Some('p') => write!(out, "{}", if hour < 12 { "AM" } else { "PM" }),
            Some('M') => write!(out, "{minute:02}"),
            Some('S') => write!(out, "{second:02}"),
            Some('F') => write!(out, "{year}-{month:02}-{day:02}"),
            Some('T') => write!(out, "{hour:02}:{minute:02}:{second:02}"),
            Some('%') => write!(out, "%"),
            Some(other) => write!(out, "%{other}"),
            None => write!(out, "%"),
        };
    }
    out
}

/// Year, month, day of the month and day of the year, of a number of days since the epoch.
fn date(mut days: u64) -> (u64, u64, u64, u64) {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    // Whole cycles of the calendar at once.
    let mut year = 1970 + days / 146_097 * 400;
    days %= 146_097;
    loop {
        let length = if leap(year) { 366 } else { 365 };
        if days < length {
            break;
        }
        days -= length;
        year += 1;
    }
    let of_year = days + 1;
    let february = if leap(year) { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days + 1, of_year)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right() {
        let at = |seconds| Duration::from_secs(seconds);
        assert_eq!(strftime("%Y-%m-%d %H:%M:%S %A %j", at(0)), "1970-01-01 00:00:00 Thursday 001");
        assert_eq!(strftime("%d %b %Y, %a", at(951_782_400)), "29 Feb 2000, Tue");
        assert_eq!(
            strftime("%B %e %y %I %p %T %F %% %q %", at(1_795_996_799)),
            "November 29 26 11 PM 23:59:59 2026-11-29 % %q %"
        );
        assert_eq!(strftime("%F %j", at(4_107_542_400 + 86_400 * 365)), "2101-03-01 060");
    }
}
