//! Times as people write and read them: durations (`30s`) and instants (`2026-11-30T12:00:00Z`).

use std::time::Duration;

const MILLIS_PER_DAY: i64 = 86_400_000;

/// Parses `250ms`, `30s`, `5m`, `2h`, `7d`; a bare number is seconds.
///
/// # Errors
/// A sentence for the usage message.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let split = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let value: f64 = number
        .parse()
        .map_err(|_| format!("`{text}` is no duration; write it like 250ms, 30s, 5m or 2h"))?;
    let seconds = match unit.trim() {
        "ms" => value / 1000.0,
        "" | "s" => value,
        "m" => value * 60.0,
        "h" => value * 3600.0,
        "d" => value * 86_400.0,
        other => {
            return Err(format!(
                "unknown unit `{other}` in `{text}`; use ms, s, m, h or d"
            ));
        }
    };
    Duration::try_from_secs_f64(seconds).map_err(|_| format!("`{text}` is out of range"))
}

/// A short form for people: `850 ms`, `3.2 s`, `4 min 10 s`.
pub fn show_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    if millis < 1000 {
        return format!("{millis} ms");
    }
    let seconds = duration.as_secs_f64();
    if seconds < 120.0 {
        return format!("{seconds:.1} s");
    }
    let whole = duration.as_secs();
    format!("{} min {} s", whole / 60, whole % 60)
}

/// Parses an instant into milliseconds since 1970: a number of milliseconds, `2026-11-30`,
/// `2026-11-30T12:34:56[.789]Z`, or a duration before `now_ms` written `-5m`.
///
/// # Errors
/// A sentence for the usage message.
pub fn parse_instant(text: &str, now_ms: i64) -> Result<i64, String> {
    if let Some(back) = text.strip_prefix('-') {
        let back = i64::try_from(parse_duration(back)?.as_millis())
            .map_err(|_| format!("`{text}` is out of range"))?;
        return Ok(now_ms - back);
    }
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return text
            .parse()
            .map_err(|_| format!("`{text}` is out of range"));
    }
    parse_rfc3339(text).ok_or_else(|| {
        format!(
            "`{text}` is no time; write milliseconds since 1970, 2026-11-30, 2026-11-30T12:00:00Z, \
             or -5m for five minutes ago"
        )
    })
}

fn parse_rfc3339(text: &str) -> Option<i64> {
    let (date, time) = match text.split_once(['T', 't', ' ']) {
        Some((date, time)) => (date, Some(time)),
        None => (text, None),
    };
    let mut parts = date.splitn(3, '-');
    let year: i64 = parts.next()?.parse().ok()?;
    let month: i64 = parts.next()?.parse().ok()?;
    let day: i64 = parts.next()?.parse().ok()?;
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let days = days_from_civil(year, month, day);
    if civil_from_days(days) != (year, month, day) {
        return None; // the 31st of a shorter month
    }
    let midnight_ms = days * MILLIS_PER_DAY;
    let Some(time) = time else {
        return Some(midnight_ms);
    };
    let (clock, zone_ms) = split_zone(time)?;
    let (clock, fraction) = match clock.split_once('.') {
        Some((clock, fraction)) => (clock, fraction),
        None => (clock, ""),
    };
    let mut parts = clock.splitn(3, ':');
    let hour: i64 = parts.next()?.parse().ok()?;
    let minute: i64 = parts.next()?.parse().ok()?;
    let second: i64 = parts.next().map_or(Some(0), |s| s.parse().ok())?;
    if !(0..24).contains(&hour) || !(0..60).contains(&minute) || !(0..=60).contains(&second) {
        return None;
    }
    if !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let millis: i64 = format!("{fraction:0<3}").get(..3)?.parse().ok()?;
    Some(midnight_ms + ((hour * 60 + minute) * 60 + second) * 1000 + millis - zone_ms)
}

/// Splits `12:00:00+02:00` into the clock and the zone's distance from UTC. No zone means UTC.
fn split_zone(time: &str) -> Option<(&str, i64)> {
    if let Some(clock) = time.strip_suffix(['Z', 'z']) {
        return Some((clock, 0));
    }
    let Some(at) = time.rfind(['+', '-']) else {
        return Some((time, 0));
    };
    let (clock, zone) = time.split_at(at);
    let sign = if zone.starts_with('-') { -1 } else { 1 };
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    let hours: i64 = hours.parse().ok()?;
    let minutes: i64 = minutes.parse().ok()?;
    Some((clock, sign * (hours * 60 + minutes) * 60_000))
}

/// `2026-11-30T12:34:56.789Z`.
pub fn show_instant(unix_millis: i64) -> String {
    let (year, month, day) = civil_from_days(unix_millis.div_euclid(MILLIS_PER_DAY));
    let rest = unix_millis.rem_euclid(MILLIS_PER_DAY);
    let (seconds, millis) = (rest / 1000, rest % 1000);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{millis:03}Z",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    )
}

/// Days since 1970-01-01 of a date in the proleptic Gregorian calendar. Years are counted from
/// March, so that the leap day is the last of its year and month lengths follow one line.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, millis) in [
            ("250ms", 250),
            ("30s", 30_000),
            ("30", 30_000),
            ("1.5m", 90_000),
            ("2h", 7_200_000),
        ] {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_millis(millis)),
                "{text}"
            );
        }
        for text in ["", "s", "5 parsecs", "-3s", "1e400s"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn instants_both_ways() {
        for (text, millis) in [
            ("1970-01-01", 0),
            ("2000-02-29T00:00:00Z", 951_782_400_000),
            ("2026-11-30T12:34:56.789Z", 1_796_042_096_789),
            ("2026-11-30T14:34:56.789+02:00", 1_796_042_096_789),
            ("1796042096789", 1_796_042_096_789),
            ("-5m", 700_000),
        ] {
            assert_eq!(parse_instant(text, 1_000_000), Ok(millis), "{text}");
        }
        for text in [
            "",
            "yesterday",
            "2026-02-30",
            "2026-13-01",
            "2026-11-30T25:00:00Z",
        ] {
            assert!(parse_instant(text, 0).is_err(), "{text}");
        }
        assert_eq!(show_instant(1_796_042_096_789), "2026-11-30T12:34:56.789Z");
        assert_eq!(show_instant(-1), "1969-12-31T23:59:59.999Z");
    }

    #[test]
    fn every_day_of_four_centuries_survives_the_round_trip() {
        for day in 0..146_097 {
            let (year, month, date) = civil_from_days(day);
            assert_eq!(days_from_civil(year, month, date), day);
        }
    }
}
