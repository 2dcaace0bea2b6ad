//! Text form of packings and parts, used in inspection and in programs' attributes.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use mlxcel_core::{Error, ErrorKind};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Code, Offset, Packing, Part, Scale};
use crate::element::ElementType;

impl fmt::Display for Part {
    /// Such as `scale factors`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Packing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            Code::Integer { zero: 0 } => write!(f, "u{}", self.bits)?,
            Code::Integer { zero } => write!(f, "u{}-{zero}", self.bits)?,
            Code::E2M1 => f.write_str("e2m1")?,
            Code::E4M3 => f.write_str("e4m3")?,
            Code::E5M2 => f.write_str("e5m2")?,
            Code::Iq4Nl => f.write_str("iq4nl")?,
        }
        write!(f, "/{} ", self.group_size)?;
        match self.scale {
            Scale::Float(element) => f.write_str(float(element))?,
            Scale::E8M0 => f.write_str("e8m0")?,
            Scale::E4M3 => f.write_str("e4m3")?,
            Scale::Bytes { signed, groups, factor } => {
                write!(f, "{}8*{}/{groups}", if signed { 'i' } else { 'u' }, float(factor))?;
            }
        }
        match self.offset {
            Offset::None => {}
            Offset::Float(element) => write!(f, " + {}", float(element))?,
            Offset::Zeros => f.write_str(" - u8*scale")?,
            Offset::Bytes { groups, factor } => write!(f, " - u8*{}/{groups}", float(factor))?,
        }
        if self.ordered { f.write_str(" ordered") } else { Ok(()) }
    }
}

impl FromStr for Packing {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        parse(text).ok_or_else(|| {
            let message = format!("'{}' describes no packing", text.escape_debug());
            Error::new(ErrorKind::InvalidInput, "read packing", message)
        })
    }
}

impl Serialize for Packing {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Packing {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <Cow<'de, str>>::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

fn parse(text: &str) -> Option<Packing> {
    let mut words = text.split(' ');
    let (code, group_size) = words.next()?.split_once('/')?;
    let (bits, code) = match code {
        "e2m1" => (4, Code::E2M1),
        "e4m3" => (8, Code::E4M3),
        "e5m2" => (8, Code::E5M2),
        "iq4nl" => (4, Code::Iq4Nl),
        integer => {
            let (bits, zero) = integer.strip_prefix('u')?.split_once('-').map_or_else(
                || Some((integer.strip_prefix('u')?, 0)),
                |(bits, zero)| Some((bits, zero.parse().ok()?)),
            )?;
            (bits.parse().ok()?, Code::Integer { zero })
        }
    };
    let scale = match words.next()? {
        "e8m0" => Scale::E8M0,
        "e4m3" => Scale::E4M3,
        scale => match scale.split_once('*') {
            None => Scale::Float(float_named(scale)?),
            Some((byte, rest)) => {
                let signed = match byte {
                    "i8" => true,
                    "u8" => false,
                    _ => return None,
                };
                let (factor, groups) = shared(rest)?;
                Scale::Bytes { signed, groups, factor }
            }
        },
    };
    let mut packing = Packing {
        bits,
        code,
        group_size: group_size.parse().ok()?,
        scale,
        offset: Offset::None,
        ordered: false,
    };
    while let Some(word) = words.next() {
        match word {
            "ordered" if !packing.ordered => packing.ordered = true,
            "+" if packing.offset == Offset::None => {
                packing.offset = Offset::Float(float_named(words.next()?)?)
            }
            "-" if packing.offset == Offset::None => {
                packing.offset = match words.next()?.strip_prefix("u8*")? {
                    "scale" => Offset::Zeros,
                    floats => {
                        let (factor, groups) = shared(floats)?;
                        Offset::Bytes { groups, factor }
                    }
                };
            }
            _ => return None,
        }
    }
    Some(packing)
}

/// A float that several groups share, such as `f16/8`.
fn shared(text: &str) -> Option<(ElementType, usize)> {
    let (factor, groups) = text.split_once('/')?;
    Some((float_named(factor)?, groups.parse().ok()?))
}

const FLOATS: [(&str, ElementType); 3] =
    [("f32", ElementType::F32), ("f16", ElementType::F16), ("bf16", ElementType::BF16)];

fn float(element: ElementType) -> &'static str {
    // Those that are not among them are refused by `Packing::check`, which prints them too.
    FLOATS.iter().find(|known| known.1 == element).map_or("no float", |known| known.0)
}

fn float_named(name: &str) -> Option<ElementType> {
    FLOATS.iter().find(|known| known.0 == name).map(|known| known.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_back() {
        for text in [
            "u4/64 bf16 + bf16",
            "u8-128/32 f16",
            "u6-32/16 i8*f16/16",
            "u4/32 u8*f16/8 - u8*f16/8",
            "e2m1/32 e8m0",
            "e2m1/16 e4m3",
            "e4m3/128 f32",
            "e5m2/32 e8m0",
            "iq4nl/32 i8*f16/8",
            "u4-8/128 f16 ordered",
            "u4/128 f16 - u8*scale ordered",
            "u4/128 f16 + f32",
        ] {
            let packing: Packing = text.parse().unwrap();
            assert_eq!(packing.to_string(), text);
            let json = serde_json::to_string(&packing).unwrap();
            assert_eq!((&*json, serde_json::from_str(&json).unwrap()), (&*format!("\"{text}\""), packing));
        }
        for (text, packing) in [
            ("e2m1/32 e8m0", Packing::MXFP4),
            ("e4m3/32 e8m0", Packing::MXFP8),
            ("e2m1/16 e4m3", Packing::NVFP4),
        ] {
            assert_eq!(text.parse::<Packing>().unwrap(), packing);
        }
        for part in Part::ALL {
            assert_eq!(serde_json::from_str::<Part>(&format!("\"{part}\"")).unwrap(), part);
        }
        assert_eq!(Part::ScaleFactors.to_string(), "scale factors");
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "u4",
            "u4/64",
            "u4/64 f64",
            "u4/64 f16 +",
            "u4/64 f16 + f16 - u8*f16/8",
            "u4/64 f16 + f16 + f16",
            "u4/64 f16 - u8*scale + f16",
            "u4/64 f16 - u8*f16",
            "u4/64 s8*f16/8",
            "u4/64 f16 ordered ordered",
            "x/2 f16",
            "u4/64 f16 x",
        ] {
            assert_eq!(text.parse::<Packing>().unwrap_err().kind(), ErrorKind::InvalidInput, "{text}");
        }
    }
}
