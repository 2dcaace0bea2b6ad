//! Checks of a whole module, for those who put one together or changed it by hand.

use crate::error::{Error, ErrorKind, Result};
use crate::module::Function;

/// Each result that an argument shares storage with is there, has its type, and is shared once.
pub(crate) fn aliases(function: &Function) -> Result<()> {
    let mut shared = Vec::new();
    for argument in &function.arguments {
        let Some(result) = argument.aliases_result else { continue };
        let (name, ty) = (&argument.name, function.value_type(argument.value));
        let error = |detail: String| Err(Error::new(ErrorKind::Structure, "alias", detail));
        let Some(&value) = function.body.results.get(result) else {
            let count = function.body.results.len();
            return error(format!(
                "argument `{name}` shares storage with result {result}, but there are {count}"
            ));
        };
        let other = function.value_type(value);
        if other != ty {
            return error(format!(
                "argument `{name}` is {ty}, but result {result}, which shares its storage, is {other}"
            ));
        }
        if shared.contains(&result) {
            return error(format!("result {result} shares storage with two arguments, one of them `{name}`"));
        }
        shared.push(result);
    }
    Ok(())
}
