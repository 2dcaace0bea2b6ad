//! Attention within texts.

use mlxcel_graph::layers::{AttentionScores, TextAttentionOperands, TextRanges, text_attention};

use super::*;

/// One call of the composite.
#[derive(Clone, Debug)]
struct TextCase {
    /// The tokens of each text; padding is behind them.
    texts: Vec<usize>,
    tokens: usize,
    heads: usize,
    groups: usize,
    width: usize,
    out: ElementType,
    window: Option<usize>,
    soft_cap: Option<f32>,
    sinks: Option<ElementType>,
}

impl Default for TextCase {
    fn default() -> Self {
        let (texts, tokens) = (vec![40, 3, 1, 33, 20], 128);
        let (heads, groups, width) = (4, 4, 32);
        Self { texts, tokens, heads, groups, width, out: F32, window: None, soft_cap: None, sinks: None }
    }
}

impl TextCase {
    fn build<'f>(
        &self,
        b: &mut Builder<'f>,
        number: usize,
        results: &mut Vec<Value<'f>>,
    ) -> mlxcel_stablehlo::Result<()> {
        let values = arguments(b, &format!("x{number}"), self.operands().iter().map(Tensor::ty))?;
        let [query, key, value, firsts, ref sinks @ ..] = values[..] else { unreachable!() };
        let texts = TextRanges::new(b, firsts)?;
        let operands =
            TextAttentionOperands { query, key, value, texts, sinks: sinks.first().copied(), biases: None };
        let scores = AttentionScores { scale: SCALE, soft_cap: self.soft_cap, alibi: false };
        results.push(text_attention(b, &operands, scores, self.window, self.out)?);
        Ok(())
    }

    /// The index of the first token of each token's text.
    fn firsts(&self) -> Vec<usize> {
        let mut firsts = Vec::new();
        for &text in &self.texts {
            firsts.extend(vec![firsts.len(); text]);
        }
        firsts.extend(firsts.len()..self.tokens);
        firsts
    }

    fn operands(&self) -> Vec<Tensor> {
        let mut random = Random(7);
        let mut tensors: Vec<_> = [self.heads, self.groups, self.groups]
            .map(|heads| random.floats(&[self.tokens, heads, self.width], F32, 1.0))
            .into();
        tensors.push(integers(&self.firsts()));
        tensors.extend(self.sinks.map(|element| random.floats(&[self.heads], element, 3.0)));
        tensors
    }

    /// `[tokens, heads, width]` in double precision.
    fn mixed(&self, operands: &[Tensor]) -> Vec<f64> {
        let numbers = |at: usize| as_f32(operands[at].ty(), operands[at].bytes());
        let [query, key, value] = [0, 1, 2].map(numbers);
        let sinks = self.sinks.map(|_| numbers(4));
        let score = |product| double::score(product, self.soft_cap);
        let firsts = self.firsts();
        let mut mixed = Vec::new();
        for token in 0..self.tokens {
            let near = |&other: &usize| {
                firsts[other] == firsts[token]
                    && self.window.is_none_or(|window| other.abs_diff(token) < window)
            };
            for head in 0..self.heads {
                let own = &query[(token * self.heads + head) * self.width..][..self.width];
                let own: Vec<f64> = own.iter().copied().map(f64::from).collect();
                let group = head / (self.heads / self.groups);
                let entry = |other: usize| {
                    let at = (other * self.groups + group) * self.width;
                    (&key[at..at + self.width], &value[at..at + self.width])
                };
                let seen = (0..self.tokens).filter(near).map(entry);
                let sink = sinks.as_ref().map(|sinks| f64::from(sinks[head]));
                mixed.extend(double::attend(&own, seen, score, sink));
            }
        }
        mixed
    }
}

#[test]
fn tokens_attend_to_their_text_in_both_directions() {
    let default = TextCase::default;
    let cases = [
        default(),
        TextCase { texts: vec![128], heads: 6, groups: 2, width: 64, ..default() },
        TextCase { texts: vec![1; 5], tokens: 16, ..default() },
        TextCase { texts: vec![1], tokens: 1, ..default() },
        TextCase { texts: vec![300, 100, 77], tokens: 500, heads: 2, groups: 1, width: 24, ..default() },
        TextCase { window: Some(1), ..default() },
        TextCase { texts: vec![90, 30], window: Some(17), out: BF16, ..default() },
        TextCase { texts: vec![60, 68], window: Some(500), soft_cap: Some(2.0), out: F16, ..default() },
        TextCase { sinks: Some(BF16), groups: 2, ..default() },
    ];
    let module = module_of("texts", &cases, TextCase::build);
    let operands: Vec<_> = cases.iter().map(TextCase::operands).collect();
    let got = on_device(&module, &crate::testing::host(), &operands.concat());
    for ((case, operands), got) in cases.iter().zip(&operands).zip(got) {
        double::compare(case, case.out, &got, &case.mixed(operands));
    }
}
