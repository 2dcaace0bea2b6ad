//! The packing of each module: recipes, exemptions of families, and overrides.

use std::str::FromStr;

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_models::Conversion;
use mlxcel_models::read::{Mode, Scheme};

use super::OPERATION;

mlxcel_core::named! {
    /// Affine bit widths that differ by module, as mlx-lm's `--quant-predicate`, with its names.
    ///
    /// The head, and the value and down projections of the first and last eighth of the layers and of every
    /// third layer between, use the wider width. mlx-lm modelled these choices on llama.cpp's `Q4_K_M`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum Recipe {
        /// 2 bits and 6.
        Mixed2And6 = "mixed_2_6",
        /// 3 bits and 4.
        Mixed3And4 = "mixed_3_4",
        /// 3 bits and 6.
        Mixed3And6 = "mixed_3_6",
        /// 4 bits and 6.
        Mixed4And6 = "mixed_4_6",
    }
}

impl Recipe {
    /// The bits of most modules.
    pub fn bits(self) -> usize {
        match self {
            Self::Mixed2And6 => 2,
            Self::Mixed3And4 | Self::Mixed3And6 => 3,
            Self::Mixed4And6 => 4,
        }
    }

    /// The bits of the more sensitive modules.
    pub fn wide_bits(self) -> usize {
        if self == Self::Mixed3And4 { 4 } else { 6 }
    }

    /// Bits of a module of a model with this many layers.
    fn bits_of(self, module: &str, layers: usize) -> usize {
        let layer = module.split('.').find_map(|part| part.parse::<usize>().ok()).unwrap_or(0);
        let edge = layers / 8;
        let is_chosen = layer < edge || layer >= 7 * layers / 8 || (layer - edge) % 3 == 2;
        // `v_a_proj` and `v_b_proj` are parts of names in latent attention.
        let matters =
            ["v_proj", "v_a_proj", "v_b_proj", "down_proj"].iter().any(|part| module.contains(part));
        if module.contains("lm_head") || is_chosen && matters { self.wide_bits() } else { self.bits() }
    }
}

impl FromStr for Recipe {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|recipe| recipe.as_str() == name).ok_or_else(|| {
            let known = Self::ALL.map(Self::as_str).join(", ");
            let message = format!("the recipe '{}' does not exist; recipes: {known}", name.escape_debug());
            Error::new(ErrorKind::InvalidInput, OPERATION, message).with_context("field", "recipe")
        })
    }
}

/// An override for some modules, as text `PATTERN=BITS` or `PATTERN=BITS/GROUP`.
///
/// The pattern is a module path such as `model.layers.3.mlp.down_proj`, in which `*` matches any text.
/// Matching modules are packed in the affine mode.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Override {
    /// The pattern of module paths.
    pub pattern: String,
    /// The bits per value.
    pub bits: usize,
    /// The group size. `None` uses that of the scheme, or 64 if the scheme is not affine.
    pub group_size: Option<usize>,
}

impl FromStr for Override {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parsed = || {
            let (pattern, sizes) = text.rsplit_once('=')?;
            let (bits, group_size) = match sizes.split_once('/') {
                Some((bits, group_size)) => (bits, Some(group_size.parse().ok()?)),
                None => (sizes, None),
            };
            let bits = bits.parse().ok()?;
            (!pattern.is_empty()).then(|| Self { pattern: pattern.to_owned(), bits, group_size })
        };
        parsed().ok_or_else(|| {
            let message = format!("'{}' is not PATTERN=BITS or PATTERN=BITS/GROUP", text.escape_debug());
            Error::new(ErrorKind::InvalidInput, OPERATION, message).with_context("field", "tensor")
        })
    }
}

impl Override {
    pub(super) fn matches(&self, module: &str) -> bool {
        let mut parts = self.pattern.split('*');
        let first = parts.next().unwrap_or_default();
        let Some(mut rest) = module.strip_prefix(first) else { return false };
        let mut parts: Vec<_> = parts.collect();
        let Some(last) = parts.pop() else { return rest.is_empty() };
        for part in parts {
            match rest.find(part) {
                Some(at) => rest = &rest[at + part.len()..],
                None => return false,
            }
        }
        rest.ends_with(last)
    }

    pub(super) fn scheme(&self, default: Scheme) -> Scheme {
        let affine = if default.mode == Mode::Affine { default } else { Scheme::of_mode(Mode::Affine) };
        let group_size = self.group_size.unwrap_or(affine.group_size);
        Scheme { mode: Mode::Affine, bits: self.bits, group_size }
    }
}

/// What each module of a model is packed as.
pub(super) struct Choice<'a> {
    pub(super) default: Scheme,
    pub(super) recipe: Option<Recipe>,
    pub(super) overrides: &'a [Override],
    pub(super) conversion: Conversion,
    pub(super) layers: usize,
}

impl Choice<'_> {
    pub(super) fn of(&self, module: &str) -> Scheme {
        let named = self.overrides.iter().rfind(|named| named.matches(module));
        match (named, self.recipe) {
            (Some(named), _) => named.scheme(self.default),
            (None, Some(recipe)) => Scheme { bits: recipe.bits_of(module, self.layers), ..self.default },
            (None, None) if self.conversion.sensitive.iter().any(|end| module.ends_with(end)) => {
                Scheme { mode: Mode::Affine, bits: 8, group_size: 64 }
            }
            (None, None) => self.default,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recipes_assign_more_bits_as_mlx_lm_does() {
        // By mlx-lm 0.32.2's mixed_quant_predicate_builder for 16 layers.
        let wide: Vec<_> = (0..16)
            .filter(|layer| {
                Recipe::Mixed3And6.bits_of(&format!("model.layers.{layer}.mlp.down_proj"), 16) == 6
            })
            .collect();
        assert_eq!(wide, [0, 1, 4, 7, 10, 13, 14, 15]);
        for (module, bits) in [
            ("lm_head", 6),
            ("model.embed_tokens", 2),
            ("model.layers.0.self_attn.v_proj", 6),
            ("model.layers.0.self_attn.qkv_proj", 6),
            ("model.layers.0.self_attn.q_proj", 2),
            ("model.layers.2.self_attn.v_proj", 2),
            ("model.layers.1.mlp.switch_mlp.down_proj", 6),
        ] {
            assert_eq!(Recipe::Mixed2And6.bits_of(module, 16), bits, "{module}");
        }
        assert_eq!(Recipe::ALL.map(|recipe| recipe.as_str().parse::<Recipe>().unwrap()), Recipe::ALL);
        assert!("mixed".parse::<Recipe>().is_err());
    }

    #[test]
    fn patterns_match_paths() {
        for (text, module, matches) in [
            ("lm_head=8", "lm_head", true),
            ("lm_head=8", "model.lm_head", false),
            ("*.v_proj=6/32", "model.layers.0.self_attn.v_proj", true),
            ("model.*.mlp.*=6", "model.layers.0.mlp.up_proj", true),
            ("model.*.mlp=6", "model.layers.0.mlp.up_proj", false),
            ("*=6", "lm_head", true),
        ] {
            let named: Override = text.parse().unwrap();
            assert_eq!(named.matches(module), matches, "{text} {module}");
        }
        let named: Override = "a=b=6/32".parse().unwrap();
        assert_eq!(named, Override { pattern: "a=b".to_owned(), bits: 6, group_size: Some(32) });
        for text in ["a", "=4", "a=x", "a=4/", "a=4/x"] {
            assert!(text.parse::<Override>().is_err(), "{text}");
        }
    }
}
