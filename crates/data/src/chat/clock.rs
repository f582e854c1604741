//! What time it is for a template, and dates as Python's `strftime` writes them.

use std::time::{SystemTime, UNIX_EPOCH};

const DAY: i64 = 86_400;
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
const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// Where a template's `strftime_now` takes the time from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The system's clock, in UTC.
    Now,
    /// Always this moment, in seconds since 1970 UTC.
    Fixed(i64),
    /// Nowhere: a template that asks is refused. The same data must be the same tomorrow.
    Refused,
}

impl Clock {
    /// The beginning of a day, `2026-11-16`.
    pub fn at_date(date: &str) -> Option<Clock> {
        let mut parts = date.split('-');
        let (year, month, day) =
            (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let valid = parts.next().is_none() && (0..=9999).contains(&year);
        let seconds = days_before(year, month, day)? * DAY;
        // The 31st of a shorter month comes back as another day.
        let back = Date::of(seconds);
        (valid && (back.year, back.month, back.day) == (year, month, day)).then_some(Clock::Fixed(seconds))
    }

    /// Seconds since 1970, if this clock tells the time.
    pub(super) fn seconds(self) -> Option<i64> {
        match self {
            Clock::Now => {
                let passed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                i64::try_from(passed.as_secs()).ok()
            }
            Clock::Fixed(seconds) => Some(seconds),
            Clock::Refused => None,
        }
    }
}

/// Days from 1970 to a day of the Gregorian calendar.
fn days_before(year: i64, month: i64, day: i64) -> Option<i64> {
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Years begin in March, so that the leap day is the last one.
    let year = if month <= 2 { year - 1 } else { year };
    let in_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let leaps = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    Some(year * 365 + leaps + in_year - 719_468)
}

struct Date {
    year: i64,
    month: i64,
    day: i64,
    weekday: usize,
    seconds: i64,
    of_year: i64,
}

impl Date {
    fn of(seconds: i64) -> Date {
        let days = seconds.div_euclid(DAY);
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let in_era = shifted.rem_euclid(146_097);
        let of_era = (in_era - in_era / 1460 + in_era / 36_524 - in_era / 146_096) / 365;
        let in_year = in_era - (365 * of_era + of_era / 4 - of_era / 100);
        let from_march = (5 * in_year + 2) / 153;
        let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
        let year = of_era + era * 400 + i64::from(month <= 2);
        Date {
            year,
            month,
            day: in_year - (153 * from_march + 2) / 5 + 1,
            weekday: (days + 4).rem_euclid(7) as usize,
            seconds: seconds.rem_euclid(DAY),
            of_year: days - days_before(year, 1, 1).unwrap_or(days) + 1,
        }
    }
}

/// A moment as `format` says; the error names what it does not know.
pub(super) fn strftime(seconds: i64, format: &str) -> Result<String, String> {
    let date = Date::of(seconds);
    let (hour, minute, second) = (date.seconds / 3600, date.seconds / 60 % 60, date.seconds % 60);
    let twelve = if hour % 12 == 0 { 12 } else { hour % 12 };
    let month = MONTHS[(date.month - 1) as usize];
    let weekday = WEEKDAYS[date.weekday];
    let mut out = String::new();
    let mut rest = format.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut code = rest.next();
        let bare = code == Some('-');
        if bare {
            code = rest.next();
        }
        let number =
            |value: i64, width: usize| if bare { value.to_string() } else { format!("{value:0width$}") };
        let text = match code {
            Some('Y') => date.year.to_string(),
            Some('y') => number(date.year.rem_euclid(100), 2),
            Some('m') => number(date.month, 2),
            Some('d') => number(date.day, 2),
            Some('e') => format!("{:>2}", date.day),
            Some('j') => number(date.of_year, 3),
            Some('B') => month.to_string(),
            Some('b' | 'h') => month[..3].to_string(),
            Some('A') => weekday.to_string(),
            Some('a') => weekday[..3].to_string(),
            Some('w') => date.weekday.to_string(),
            Some('u') => if date.weekday == 0 { 7 } else { date.weekday }.to_string(),
            Some('H') => number(hour, 2),
            Some('I') => number(twelve, 2),
            Some('M') => number(minute, 2),
            Some('S') => number(second, 2),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_string(),
            Some('f') => "000000".to_string(),
            Some('z') => "+0000".to_string(),
            Some('Z') => "UTC".to_string(),
            Some('F') => format!("{:04}-{:02}-{:02}", date.year, date.month, date.day),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('D') => format!("{:02}/{:02}/{:02}", date.month, date.day, date.year.rem_euclid(100)),
            Some('R') => format!("{hour:02}:{minute:02}"),
            Some('n') => "\n".to_string(),
            Some('t') => "\t".to_string(),
            Some('%') => "%".to_string(),
            Some(other) => return Err(format!("'%{other}' is not known")),
            None => return Err("it ends with '%'".to_string()),
        };
        out.push_str(&text);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let at = |date: &str, format: &str| {
            strftime(Clock::at_date(date).unwrap().seconds().unwrap(), format).unwrap()
        };
        assert_eq!(at("2024-02-29", "%d %b %Y, %A, day %j"), "29 Feb 2024, Thursday, day 060");
        assert_eq!(at("1970-01-01", "%a %-d/%-m/%y %H:%M:%S %I %p"), "Thu 1/1/70 00:00:00 12 AM");
        assert_eq!(at("2000-12-31", "%F is %B %e, day %j"), "2000-12-31 is December 31, day 366");
        assert_eq!(strftime(1_700_000_000, "%F %T %p %u"), Ok("2023-11-14 22:13:20 PM 2".into()));
        assert!(strftime(0, "%Q").is_err() && strftime(0, "%").is_err());
        for wrong in ["2023-02-29", "2024-13-01", "2024-01", "2024-01-01-01", "x", "2024-00-10"] {
            assert_eq!(Clock::at_date(wrong), None, "{wrong}");
        }
    }
}
