//! Roles of weights, and which weights are operands of matrix products.

use std::collections::HashSet;
use std::fmt;

use super::{Decoder, Linear, WeightId};
use crate::element::ElementType;

/// The part of the network that a weight belongs to. Prints as one or two words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WeightRole {
    /// Token embedding.
    Embedding,
    /// Learned position embeddings.
    Positions,
    /// Embeddings of token types.
    TokenTypes,
    /// Norms of blocks and inside of them.
    Norm,
    /// Attention, including its projections.
    Attention,
    /// Short convolutions and linear recurrences, including their projections.
    Recurrence,
    /// MLPs, including shared experts.
    Mlp,
    /// The router of experts.
    Router,
    /// The experts.
    Experts,
    /// The head, if it is not tied.
    Head,
}

impl WeightRole {
    /// All roles.
    pub const ALL: [Self; 10] = [
        Self::Embedding,
        Self::Positions,
        Self::TokenTypes,
        Self::Norm,
        Self::Attention,
        Self::Recurrence,
        Self::Mlp,
        Self::Router,
        Self::Experts,
        Self::Head,
    ];

    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embedding => "embedding",
            Self::Positions => "positions",
            Self::TokenTypes => "token types",
            Self::Norm => "norms",
            Self::Attention => "attention",
            Self::Recurrence => "recurrence",
            Self::Mlp => "mlp",
            Self::Router => "router",
            Self::Experts => "experts",
            Self::Head => "head",
        }
    }
}

crate::named::serialize_by_name!(WeightRole, |name| WeightRole::ALL
    .into_iter()
    .find(|role| role.name() == name));

impl fmt::Display for WeightRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Decoder {
    /// The role of each weight, in the order of [`weights`](Self::weights). A weight with several roles, such
    /// as a tied head's, has the first.
    pub fn weight_roles(&self) -> Vec<WeightRole> {
        // Every weight of the table was added for a role.
        self.collect().roles.into_iter().map(|role| role.unwrap_or(WeightRole::Head)).collect()
    }

    /// The weights that can be quantized, in the order of the table: those of linear layers, and the token
    /// embedding. The others (norms, biases, convolutions, per-head numbers) are small.
    pub fn products(&self) -> Vec<WeightId> {
        let mut products = self.collect().products;
        products.sort_unstable();
        products.dedup();
        products
    }

    /// The linear layers that adapters can change: those of attention, recurrences and MLPs, each weight
    /// once. Not embeddings, the head, routers, experts, and the per-head products of latent attention.
    pub fn adaptable(&self) -> Vec<Linear> {
        let mut seen = HashSet::new();
        let adapted = [WeightRole::Attention, WeightRole::Recurrence, WeightRole::Mlp];
        let linears = self.collect().linears.into_iter().filter(|(role, _)| adapted.contains(role));
        linears.map(|(_, linear)| linear).filter(|linear| seen.insert(linear.weight)).collect()
    }

    /// The same network with the weights of linear layers and the token embedding converted to `element`, for
    /// engines that [expand](crate::Checkpoint::expanded_weight) weights at load.
    #[must_use]
    pub fn expanded(&self, element: ElementType) -> Self {
        let mut expanded = self.clone();
        for weight in self.products() {
            expanded.weights.expand(weight, element);
        }
        expanded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Manifests of bundles have them.
    #[test]
    fn roles_are_read_back_by_name() {
        for role in [WeightRole::TokenTypes, WeightRole::Positions, WeightRole::Head] {
            let name = serde_json::to_string(&role).unwrap();
            assert_eq!(serde_json::from_str::<WeightRole>(&name).unwrap(), role);
        }
    }
}
