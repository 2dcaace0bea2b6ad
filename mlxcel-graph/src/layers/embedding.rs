//! Token embedding.

use mlxcel_stablehlo::{Builder, ElementType, ErrorKind, Result, Value};

use super::refusal;
use crate::composites;

/// Rows of `table: [V, H]` at integer `ids` of any shape, in f32: `[..ids, H]`. Ids are clamped to the table.
///
/// Makes the composite [`mlxcel.embedding`](crate::composites::EMBEDDING), whose decomposition is
/// [`Builder::take`] and a conversion. If a model's head uses the same table (tied embeddings), an engine
/// that changes the table's layout for the head's product can find both uses.
///
/// # Errors
/// A table that is not floating-point, not two-dimensional or has no rows; ids that are not integers.
pub fn embedding<'f>(b: &mut Builder<'f>, table: Value<'f>, ids: Value<'f>) -> Result<Value<'f>> {
    let (table_type, ids_type) = (b.ty(table), b.ty(ids));
    let named = [("table", table), ("ids", ids)];
    let error = |kind, detail| Err(refusal(b, "embedding", named, kind, detail));
    if !table_type.element.is_float() || !ids_type.element.is_integer() {
        return error(ErrorKind::Element, "table must be of floats, ids of integers");
    }
    if table_type.rank() != 2 || table_type.shape.first() == Some(&0) {
        return error(ErrorKind::Shape, "table must be [V, H] with at least one row");
    }
    let results = b.composite(composites::EMBEDDING, &[table, ids], &[], |b, args| {
        let rows = b.take(args[0], args[1])?;
        Ok(vec![b.convert(rows, ElementType::F32)?])
    })?;
    Ok(results[0])
}
