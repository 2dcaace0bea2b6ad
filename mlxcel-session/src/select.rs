//! Engine selection.

use std::sync::Arc;

use mlxcel_core::{Backend, Error, ErrorKind, Result};

/// The environment variable that names the engine if the application does not.
pub const BACKEND_VARIABLE: &str = "MLXCEL_BACKEND";

/// An engine that this crate can re-export.
struct Engine {
    name: &'static str,
    aliases: &'static [&'static str],
    /// The feature of this crate that compiles it in.
    feature: &'static str,
    /// Makes it with its default options; `None` if it is not compiled in.
    make: Option<fn() -> Arc<dyn Backend>>,
}

/// Declares what makes each engine, if the features that compile it in are on.
macro_rules! makes {
    ($($name:ident = $engine:expr, if $feature:meta;)*) => {$(
        #[cfg($feature)]
        const $name: Option<fn() -> Arc<dyn Backend>> = Some(|| Arc::new($engine));
        #[cfg(not($feature))]
        const $name: Option<fn() -> Arc<dyn Backend>> = None;
    )*};
}

makes! {
    IREE = mlxcel_iree::IreeBackend::new(), if any(feature = "iree-dist", feature = "iree-runtime");
    MLX = mlxcel_mlx::MlxBackend::new(), if feature = "mlx";
    PJRT = mlxcel_pjrt::PjrtBackend::new(), if feature = "pjrt";
    PORTABLE = mlxcel_portable::PortableBackend::new(), if feature = "portable";
}

/// The engines in the order of preference.
const ENGINES: [Engine; 4] = {
    let iree = Engine { name: "iree", aliases: &["xla"], feature: "iree", make: IREE };
    let mlx = Engine { name: "mlx", aliases: &[], feature: "mlx", make: MLX };
    let portable = Engine { name: "portable", aliases: &[], feature: "portable", make: PORTABLE };
    // It needs a plugin that may be missing, so it is the default only if there is no other engine.
    let pjrt = Engine { name: "pjrt", aliases: &[], feature: "pjrt", make: PJRT };
    // Apple silicon is what MLX is made for; elsewhere it stands behind the engine that is.
    if cfg!(target_os = "macos") { [mlx, iree, portable, pjrt] } else { [iree, mlx, portable, pjrt] }
};

/// Returns the engine `name` with its default options. Without a name, it takes the one in the environment
/// variable `MLXCEL_BACKEND`, and if that is unset, the first compiled-in engine of `iree`, `mlx`,
/// `portable`, `pjrt` (on macOS of `mlx`, `iree`, `portable`, `pjrt`).
///
/// `xla` is another name of `iree`; to run on XLA itself, use `pjrt` with a plugin of XLA. It never falls
/// back silently: naming an engine that is not compiled in is an error. To set an engine's own options,
/// create the engine and call [`Model::load`](crate::Model::load).
///
/// # Errors
///
/// [`ErrorKind::NotFound`] for an unknown name or if no engine is compiled in, [`ErrorKind::Unsupported`] for
/// an engine that is not compiled in. Both list the available engines and the features that add the others.
pub fn select_backend(name: Option<&str>) -> Result<Arc<dyn Backend>> {
    let variable = std::env::var_os(BACKEND_VARIABLE);
    let variable = variable.as_deref().map(|value| value.to_string_lossy());
    select(&ENGINES, name, variable.as_deref())
}

/// The names of the compiled-in engines, in order of preference.
pub fn available_backends() -> Vec<&'static str> {
    compiled_in(&ENGINES)
}

fn select(engines: &[Engine], name: Option<&str>, variable: Option<&str>) -> Result<Arc<dyn Backend>> {
    // An empty variable is how a shell says that it is not set.
    let (name, by_variable) = match (name, variable.filter(|value| !value.is_empty())) {
        (Some(name), _) => (name, false),
        (None, Some(name)) => (name, true),
        (None, None) => {
            let first = engines.iter().find_map(|engine| engine.make);
            return first.map(|make| make()).ok_or_else(|| {
                describe(
                    Error::new(ErrorKind::NotFound, "select backend", "no engine is compiled in"),
                    engines,
                )
            });
        }
    };
    let known = engines.iter().find(|engine| {
        [engine.name].iter().chain(engine.aliases).any(|known| known.eq_ignore_ascii_case(name))
    });
    let error = match known {
        Some(Engine { make: Some(make), .. }) => return Ok(make()),
        Some(_) => Error::unsupported("select backend", "this engine is not compiled in"),
        None => Error::new(ErrorKind::NotFound, "select backend", "the engine does not exist"),
    };
    let mut error = error.with_context("backend", name);
    if by_variable {
        error = error.with_context("named_by", BACKEND_VARIABLE);
    }
    Err(describe(error, engines))
}

/// Says what is compiled in, and what is not.
fn describe(error: Error, engines: &[Engine]) -> Error {
    let available = compiled_in(engines);
    let missing: Vec<_> = engines
        .iter()
        .filter(|engine| engine.make.is_none())
        .map(|engine| format!("{} (feature `{}` of mlxcel-session)", engine.name, engine.feature))
        .collect();
    let list = |names: String| if names.is_empty() { "none".to_owned() } else { names };
    error
        .with_context("compiled_in", list(available.join(", ")))
        .with_context("not_compiled_in", list(missing.join(", ")))
}

fn compiled_in(engines: &[Engine]) -> Vec<&'static str> {
    engines.iter().filter(|engine| engine.make.is_some()).map(|engine| engine.name).collect()
}

#[cfg(test)]
mod tests {
    use mlxcel_core::{LoadOptions, Model, ModelSource};

    use super::*;

    struct Named(&'static str);

    impl Backend for Named {
        fn name(&self) -> &str {
            self.0
        }
        fn load(&self, _: &ModelSource, _: &LoadOptions) -> Result<Arc<dyn Model>> {
            Err(Error::unsupported("load", "it only has a name"))
        }
    }

    const ENGINES: [Engine; 3] = [
        Engine { name: "mill", aliases: &[], feature: "mill", make: None },
        Engine {
            name: "steam",
            aliases: &["boiler"],
            feature: "steam",
            make: Some(|| Arc::new(Named("steam"))),
        },
        Engine { name: "water", aliases: &[], feature: "water", make: Some(|| Arc::new(Named("water"))) },
    ];

    #[test]
    fn an_explicit_name_precedes_the_variable_and_the_variable_precedes_the_default() {
        let selected = |name, variable| select(&ENGINES, name, variable).unwrap().name().to_owned();
        assert_eq!(selected(Some("water"), Some("steam")), "water");
        assert_eq!(selected(None, Some("water")), "water");
        assert_eq!(selected(None, None), "steam");
        assert_eq!(selected(None, Some("")), "steam");
        assert_eq!(selected(Some("Boiler"), None), "steam");
    }

    #[test]
    fn unknown_engines_are_rejected_with_a_list_of_available_ones() {
        let unknown = select(&ENGINES, Some("wind"), None).err().unwrap();
        assert_eq!(unknown.kind(), ErrorKind::NotFound);
        let missing = select(&ENGINES, None, Some("mill")).err().unwrap();
        assert_eq!(missing.kind(), ErrorKind::Unsupported);
        assert_eq!(missing.context("named_by"), Some(BACKEND_VARIABLE));
        for error in [unknown, missing] {
            assert_eq!(error.context("compiled_in"), Some("steam, water"));
            assert_eq!(error.context("not_compiled_in"), Some("mill (feature `mill` of mlxcel-session)"));
        }
        let nothing = select(&ENGINES[..1], None, None).err().unwrap();
        assert_eq!(nothing.context("compiled_in"), Some("none"));
    }
}
