//! Token embedding.

use mlxcel_stablehlo::{Builder, ElementType, Error, ErrorKind, Result, Value};

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
    const OP: &str = "embedding";
    let (table_type, ids_type) = (b.ty(table), b.ty(ids));
    let error = |kind, detail: &str| {
        let operands = vec![("table".to_owned(), table_type.clone()), ("ids".to_owned(), ids_type.clone())];
        Err(Error::new(kind, OP, detail).with_operands(operands))
    };
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
