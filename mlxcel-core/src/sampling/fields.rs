//! Sets of sampling parameters.

use std::fmt;

use super::SamplingField;

/// A set of [`SamplingField`]s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SamplingFields(u32);

impl SamplingFields {
    /// No field: greedy decoding only.
    pub const NONE: Self = Self(0);

    /// The set with `field` in it.
    #[must_use]
    pub const fn with(self, field: SamplingField) -> Self {
        Self(self.0 | 1 << field as u32)
    }

    /// Whether `field` is in the set.
    pub const fn contains(self, field: SamplingField) -> bool {
        self.0 & 1 << field as u32 != 0
    }

    /// The fields that are in both sets.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The fields in the set, in the order of application.
    pub fn iter(self) -> impl Iterator<Item = SamplingField> {
        SamplingField::ALL.iter().copied().filter(move |&field| self.contains(field))
    }
}

impl FromIterator<SamplingField> for SamplingFields {
    fn from_iter<I: IntoIterator<Item = SamplingField>>(fields: I) -> Self {
        fields.into_iter().fold(Self::NONE, Self::with)
    }
}

impl<const N: usize> From<[SamplingField; N]> for SamplingFields {
    fn from(fields: [SamplingField; N]) -> Self {
        fields.into_iter().collect()
    }
}

impl fmt::Display for SamplingFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, field) in self.iter().enumerate() {
            write!(f, "{}{}", if i == 0 { "" } else { ", " }, field.as_str())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_set_contains_the_inserted_fields() {
        for &field in SamplingField::ALL {
            let set = SamplingFields::from([field]);
            assert_eq!(set.iter().collect::<Vec<_>>(), [field]);
            assert_eq!(set.with(field), set);
            assert_eq!(set.to_string(), field.as_str());
            assert_eq!(set.intersection(SamplingFields::NONE), SamplingFields::NONE);
        }
        let all: SamplingFields = SamplingField::ALL.iter().copied().collect();
        assert_eq!(all.iter().count(), SamplingField::ALL.len(), "each has a bit of its own");
    }
}
