//! Numbers, durations, sizes and rates in the form of options: `8080`, `30s`, `10MiB`, `off`.

use serde::Deserialize;
use std::str::FromStr;
use std::time::Duration;

/// A port: a number from 0 to 65535.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "TomlValue")]
pub(crate) struct Port(pub(crate) u16);

impl FromStr for Port {
    type Err = String;

    fn from_str(text: &str) -> Result<Port, String> {
        let port = digits(text).and_then(|number| number.try_into().ok());
        port.map(Port)
            .ok_or_else(|| "write a number from 0 to 65535".to_owned())
    }
}

/// A number of things, from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "TomlValue")]
pub(crate) struct Count<const MIN: u32 = 0, const MAX: u32 = { u32::MAX }>(pub(crate) u32);

impl<const MIN: u32, const MAX: u32> FromStr for Count<MIN, MAX> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let count = digits(text).and_then(|number| number.try_into().ok());
        let count = count.filter(|count| (MIN..=MAX).contains(count));
        count
            .map(Count)
            .ok_or_else(|| format!("write a whole number from {MIN} to {MAX}"))
    }
}

impl<const MIN: u32, const MAX: u32> From<Count<MIN, MAX>> for usize {
    fn from(count: Count<MIN, MAX>) -> usize {
        count.0 as usize
    }
}

/// A number that consists of digits only, without a sign.
fn digits(text: &str) -> Option<u64> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

/// A duration: a number and a unit (`ms`, `s`, `m`, `h`, `d`), `0`, or `off`, which means 0.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "TomlValue")]
pub(crate) struct Time {
    pub(crate) ms: u32,
}

impl Time {
    pub(crate) const fn seconds(seconds: u32) -> Time {
        Time { ms: seconds * 1000 }
    }

    pub(crate) fn duration(self) -> Duration {
        Duration::from_millis(self.ms.into())
    }

    /// [`Duration::MAX`] if it is `off`.
    pub(crate) fn duration_or_max(self) -> Duration {
        match self.ms {
            0 => Duration::MAX,
            _ => self.duration(),
        }
    }
}

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Time, String> {
        if matches!(text, "0" | "off") {
            return Ok(Time { ms: 0 });
        }
        let (number, unit) =
            split(text).ok_or("write a time as in 30s, 500ms, 2m, 1h or 7d, or off")?;
        let unit_ms = match unit {
            "ms" => 1,
            "s" => 1000,
            "m" => 60 * 1000,
            "h" => 60 * 60 * 1000,
            "d" => 24 * 60 * 60 * 1000,
            "" => return Err(format!("write a unit, as in {number}s")),
            _ => return Err("the unit of a time is ms, s, m, h or d".to_owned()),
        };
        let ms = number.checked_mul(unit_ms).map(u32::try_from);
        match ms {
            Some(Ok(ms)) => Ok(Time { ms }),
            _ => Err("too long; at most 49d".to_owned()),
        }
    }
}

/// A number of bytes: a number with or without a unit (`B`; `KiB`, `MiB`, `GiB`, `TiB` or `K`, `M`,
/// `G`, `T` by 1024; `KB`, `MB`, `GB`, `TB` by 1000; case does not matter).
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "TomlValue")]
pub(crate) struct Size {
    pub(crate) bytes: u64,
}

impl Size {
    pub(crate) const fn kib(kib: u64) -> Size {
        Size { bytes: kib * 1024 }
    }
}

impl From<Size> for u64 {
    /// The size in bytes.
    fn from(size: Size) -> u64 {
        size.bytes
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let (number, unit) = split(text).ok_or("write a size as in 10MiB or 4096")?;
        let (base, power) = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => (1, 0),
            "k" | "kib" => (1024, 1),
            "m" | "mib" => (1024, 2),
            "g" | "gib" => (1024, 3),
            "t" | "tib" => (1024, 4),
            "kb" => (1000u64, 1),
            "mb" => (1000, 2),
            "gb" => (1000, 3),
            "tb" => (1000, 4),
            _ => {
                let units =
                    "KiB or K, MiB or M, GiB or G, TiB or T (by 1024), KB, MB, GB, TB (by 1000)";
                return Err(format!("the unit of a size is B, {units}"));
            }
        };
        let bytes = number
            .checked_mul(base.pow(power))
            .ok_or("too large; a size is less than 16 EiB")?;
        Ok(Size { bytes })
    }
}

/// A maximum size. `off` and `unlimited` mean no limit.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "TomlValue")]
pub(crate) struct SizeMax {
    pub(crate) bytes: u64,
}

impl SizeMax {
    pub(crate) const OFF: SizeMax = SizeMax { bytes: u64::MAX };
}

impl From<SizeMax> for u64 {
    /// The size in bytes.
    fn from(size: SizeMax) -> u64 {
        size.bytes
    }
}

impl FromStr for SizeMax {
    type Err = String;

    fn from_str(text: &str) -> Result<SizeMax, String> {
        if matches!(text, "off" | "unlimited") {
            return Ok(SizeMax::OFF);
        }
        let wrong = |error| format!("{error}; off or unlimited means no limit");
        let size: Size = text.parse().map_err(wrong)?;
        Ok(SizeMax { bytes: size.bytes })
    }
}

/// A size of an optional feature. `0` and `off` disable it.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "TomlValue")]
pub(crate) struct SizeOrOff {
    pub(crate) bytes: u64,
}

impl FromStr for SizeOrOff {
    type Err = String;

    fn from_str(text: &str) -> Result<SizeOrOff, String> {
        if text == "off" {
            return Ok(SizeOrOff { bytes: 0 });
        }
        let size: Size = text.parse().map_err(|error| format!("{error}; or off"))?;
        Ok(SizeOrOff { bytes: size.bytes })
    }
}

/// A rate in bytes per second, written as a size. `0` and `off` mean no minimum.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "TomlValue")]
pub(crate) struct Rate {
    pub(crate) bytes_per_s: u32,
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Rate, String> {
        const FORM: &str = "write bytes per second as in 100 or 1KiB, less than 4GiB; or off";
        if text == "off" {
            return Ok(Rate { bytes_per_s: 0 });
        }
        let size: Size = text.parse().map_err(|_| FORM)?;
        let bytes_per_s = u32::try_from(size.bytes).map_err(|_| FORM)?;
        Ok(Rate { bytes_per_s })
    }
}

/// A whole number and the unit that follows it, possibly after spaces.
fn split(text: &str) -> Option<(u64, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    Some((number.parse().ok()?, unit.trim_start_matches(' ')))
}

/// A value of a TOML file: a string or a number.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a number, or text such as \"30s\" or \"10MiB\""
)]
enum TomlValue {
    Number(i64),
    Text(String),
}

impl TomlValue {
    fn parse<T: FromStr<Err = String>>(&self) -> Result<T, String> {
        match self {
            TomlValue::Number(number) => number.to_string().parse(),
            TomlValue::Text(text) => text.parse(),
        }
    }
}

macro_rules! impl_from_toml {
    ($($unit:ty)*) => {$(
        impl TryFrom<TomlValue> for $unit {
            type Error = String;

            fn try_from(value: TomlValue) -> Result<$unit, String> {
                value.parse()
            }
        }
    )*};
}

impl<const MIN: u32, const MAX: u32> TryFrom<TomlValue> for Count<MIN, MAX> {
    type Error = String;

    fn try_from(value: TomlValue) -> Result<Self, String> {
        value.parse()
    }
}

impl_from_toml! { Port Time Size SizeMax SizeOrOff Rate }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_counts_are_digits() {
        let port = |text: &str| text.parse::<Port>().ok().map(|port| port.0);
        assert_eq!((port("0"), port("65535")), (Some(0), Some(65535)));
        let count = |text: &str| text.parse::<Count>().ok().map(|count| count.0);
        assert_eq!((count("7"), count("4294967295")), (Some(7), Some(u32::MAX)));
        let of_two = |text: &str| text.parse::<Count<2, 3>>().is_ok();
        assert_eq!(["1", "2", "3", "4"].map(of_two), [false, true, true, false]);
        for wrong in [
            "",
            "abc",
            "-1",
            "+1",
            "1.0",
            "1 ",
            "99999999999999999999",
            "off",
        ] {
            assert_eq!((port(wrong), count(wrong)), (None, None), "{wrong}");
        }
        assert_eq!((port("65536"), count("4294967296")), (None, None));
    }

    #[test]
    fn times_need_a_unit() {
        let ms = |text: &str| text.parse::<Time>().ok().map(|time| time.ms);
        assert_eq!(ms("30s"), Some(30_000));
        assert_eq!(ms("500ms"), Some(500));
        assert_eq!(ms("2 m"), Some(120_000));
        assert_eq!(ms("1h"), Some(3_600_000));
        assert_eq!(ms("1193h"), Some(1193 * 3_600_000));
        assert_eq!(ms("7d"), Some(7 * 24 * 3_600_000));
        assert_eq!(ms("49d"), Some(49 * 24 * 3_600_000));
        assert_eq!(ms("0"), Some(0));
        assert_eq!(ms("off"), Some(0));
        for wrong in [
            "",
            "30",
            "s",
            "-1s",
            "1.5s",
            "30sec",
            "1194h",
            "50d",
            "1w",
            "99999999999999999999s",
        ] {
            assert_eq!(ms(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn sizes_are_parsed_with_and_without_a_unit() {
        let bytes = |text: &str| text.parse::<Size>().ok().map(|size| size.bytes);
        assert_eq!(bytes("0"), Some(0));
        assert_eq!(bytes("4096"), Some(4096));
        assert_eq!(bytes("10MiB"), Some(10 << 20));
        assert_eq!(bytes("10 mb"), Some(10_000_000));
        assert_eq!(bytes("2TiB"), Some(2 << 40));
        assert_eq!(bytes("100G"), Some(100 << 30));
        assert_eq!(bytes("7k"), Some(7 << 10));
        assert_eq!(bytes("1b"), Some(1));
        for wrong in [
            "",
            "MiB",
            "-1",
            "1.5MiB",
            "10X",
            "10Mi",
            "99999999TiB",
            "off",
            "unlimited",
        ] {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn off_disables_a_limit_a_cache_or_a_rate() {
        let max = |text: &str| text.parse::<SizeMax>().ok().map(|size| size.bytes);
        assert_eq!(max("off"), Some(u64::MAX));
        assert_eq!(max("unlimited"), Some(u64::MAX));
        assert_eq!((max("0"), max("1KiB")), (Some(0), Some(1024)));
        let cache = |text: &str| text.parse::<SizeOrOff>().ok().map(|size| size.bytes);
        assert_eq!(
            (cache("off"), cache("0"), cache("1B")),
            (Some(0), Some(0), Some(1))
        );
        assert_eq!(cache("unlimited"), None);
        let rate = |text: &str| text.parse::<Rate>().ok().map(|rate| rate.bytes_per_s);
        assert_eq!(
            (rate("off"), rate("0"), rate("1KB")),
            (Some(0), Some(0), Some(1000))
        );
        for wrong in ["unlimited", "4GiB", "none", "-1", "", "Off "] {
            assert_eq!(rate(wrong), None, "{wrong}");
        }
    }
}
