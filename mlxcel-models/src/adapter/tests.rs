use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::files::{CONFIG, Format};
use super::*;
use crate::checkpoint::Checkpoint;

/// The file of PEFT's matrices.
const WEIGHTS: &str = "adapter_model.safetensors";

/// A tensor of a file: its name, shape and numbers.
type Tensor = (String, Vec<usize>, Vec<f32>);

fn decoder(architecture: &str) -> Decoder {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/architectures").join(architecture);
    Checkpoint::open(folder).unwrap().decoder().unwrap()
}

fn settings() -> Value {
    json!({"peft_type": "LORA", "r": 2, "lora_alpha": 6, "target_modules": ["q_proj", "qkv_proj"], "lora_dropout": 0.1})
}

/// Both matrices of a module with these sizes.
fn matrices(module: &str, outputs: usize, inputs: usize, rank: usize) -> Vec<Tensor> {
    let numbers = |count: usize| (0..count).map(|index| (index % 13) as f32 - 6.0).collect::<Vec<_>>();
    vec![
        (format!("base_model.model.{module}.lora_A.weight"), vec![rank, inputs], numbers(rank * inputs)),
        (format!("base_model.model.{module}.lora_B.weight"), vec![outputs, rank], numbers(outputs * rank)),
    ]
}

fn query() -> Vec<Tensor> {
    matrices("model.layers.1.self_attn.q_proj", 64, 64, 2)
}

/// A folder with an adapter of PEFT.
fn folder(settings: &Value, tensors: &[Tensor]) -> tempfile::TempDir {
    folder_of(Format::Peft, settings, tensors)
}

fn folder_of(format: Format, settings: &Value, tensors: &[Tensor]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(CONFIG), settings.to_string()).unwrap();
    let bytes: Vec<Vec<u8>> = tensors.iter().map(|(_, _, numbers)| bytes_of(numbers)).collect();
    let views = tensors.iter().zip(&bytes).map(|((name, shape, _), bytes)| {
        (
            name.as_str(),
            safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes).unwrap(),
        )
    });
    let file = safetensors::serialize(views, None).unwrap();
    fs::write(folder.path().join(format.weights().unwrap()), file).unwrap();
    folder
}

fn bytes_of(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn read_into(decoder: &Decoder, settings: &Value, tensors: &[Tensor]) -> Result<AdapterWeights> {
    let folder = folder(settings, tensors);
    AdapterWeights::read(&ModelSource::from(folder.path()), decoder, AdapterLimits::new(1, 4))
}

fn read(settings: &Value, tensors: &[Tensor]) -> Result<AdapterWeights> {
    read_into(&decoder("llama"), settings, tensors)
}

#[test]
fn matrices_are_read_beside_their_weight_and_scaled() {
    let decoder = decoder("llama");
    let tensors = query();
    let found = read(&settings(), &tensors).unwrap();
    let (weight, product) = found.products.iter().next().unwrap();
    assert_eq!(decoder.weight(*weight).tensor, "model.layers.1.self_attn.q_proj.weight");
    assert_eq!((found.products.len(), product.rank, &product.a), (1, 2, &tensors[0].2));
    let scaled: Vec<f32> = tensors[1].2.iter().map(|number| number * 3.0).collect();
    assert_eq!(product.b, scaled);
    // By the root of the rank, and by patterns that name modules.
    let scale = |changes: Value| {
        let mut settings = settings();
        settings.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        read(&settings, &tensors).unwrap().products[weight].b[0] / tensors[1].2[0]
    };
    assert_eq!(scale(json!({"use_rslora": true})), (6.0 / 2f64.sqrt()) as f32);
    assert_eq!(scale(json!({"alpha_pattern": {"q_proj": 1, "k_proj": 100}})), 0.5);
    assert_eq!(scale(json!({"alpha_pattern": {"^model.layers.1.self_attn.q_proj": 4, "j_proj": 100}})), 2.0);
    assert_eq!(scale(json!({"r": 8, "rank_pattern": {"layers.1.self_attn.q_proj": 2}})), 3.0);
    assert_eq!(scale(json!({"target_modules": ".*q_proj", "loftq_config": {}, "use_dora": false})), 3.0);
}

#[test]
fn the_largest_rank_is_the_room_that_an_adapter_needs() {
    let tensors = [query(), matrices("model.layers.0.self_attn.q_proj", 64, 64, 7)].concat();
    let folder = folder(&settings(), &tensors);
    assert_eq!(AdapterWeights::rank(&ModelSource::from(folder.path())).unwrap(), 7);
}

#[test]
fn identities_differ_by_numbers_and_settings() {
    let identity = |settings: &Value, tensors: &[Tensor]| read(settings, tensors).unwrap().identity;
    let (settings, tensors) = (settings(), query());
    let own = identity(&settings, &tensors);
    assert_eq!((own.len(), &own), (64, &identity(&settings, &tensors)));
    let mut other = tensors.clone();
    other[0].2[0] = 0.5;
    assert_ne!(identity(&settings, &other), own);
    let mut alpha = settings.clone();
    alpha["lora_alpha"] = json!(7);
    assert_ne!(identity(&alpha, &tensors), own);
}

#[test]
fn an_adapter_of_a_fused_projection_is_split_by_its_rows() {
    let decoder = decoder("phi3");
    let (outputs, inputs) = (64 + 32 + 32, 64);
    let tensors = matrices("model.layers.0.self_attn.qkv_proj", outputs, inputs, 2);
    let found = read_into(&decoder, &settings(), &tensors).unwrap();
    assert_eq!(found.products.len(), 3);
    let mut all = Vec::new();
    for start in [0, 64, 96] {
        let (_, product) = found
            .products
            .iter()
            .find(|(weight, _)| decoder.weight(**weight).selection.is_some_and(|rows| rows.start == start))
            .unwrap();
        assert_eq!(product.a, tensors[0].2);
        all.extend(product.b.iter().map(|number| number / 3.0));
    }
    assert_eq!(all, tensors[1].2);
}

#[test]
fn settings_that_would_change_results_are_refused_by_name() {
    for (field, value) in [
        ("peft_type", json!("LOHA")),
        ("use_dora", json!(true)),
        ("bias", json!("all")),
        ("lora_bias", json!(true)),
        ("modules_to_save", json!(["lm_head"])),
        ("trainable_token_indices", json!([1])),
        ("target_parameters", json!(["mlp.experts.gate_up_proj"])),
        ("layer_replication", json!([[0, 1]])),
        ("init_lora_weights", json!("pissa")),
        ("of_next_year", json!(1)),
        ("alpha_pattern", json!({"layers.[01]": 3})),
        ("alpha_pattern", json!({"q_proj": 3, "self_attn.q_proj": 4})),
    ] {
        let mut settings = settings();
        settings[field] = value;
        let error = read(&settings, &query()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{field}");
        assert!(error.context("field").is_some_and(|named| named.starts_with(field)), "{error}");
    }
    for field in ["peft_type", "r", "lora_alpha"] {
        let mut settings = settings();
        settings.as_object_mut().unwrap().remove(field);
        let error = read(&settings, &query()).unwrap_err();
        assert_eq!((error.kind(), error.context("field")), (ErrorKind::Corrupt, Some(field)));
    }
}

#[test]
fn tensors_that_do_not_fit_are_refused_by_name() {
    let module = "model.layers.1.self_attn.q_proj";
    let with = |change: &dyn Fn(&mut Vec<Tensor>)| {
        let mut tensors = query();
        change(&mut tensors);
        tensors
    };
    let resized = |index: usize, shape: [usize; 2]| {
        with(&|tensors| {
            tensors[index].1 = shape.to_vec();
            tensors[index].2 = vec![1.0; shape.iter().product()];
        })
    };
    let named = |name: &str| with(&|tensors| tensors[0].0 = name.to_owned());
    let number = |number: f32| with(&|tensors| tensors[1].2[3] = number);
    for (tensors, kind) in [
        (with(&|tensors| drop(tensors.pop())), ErrorKind::Corrupt),
        (resized(0, [2, 63]), ErrorKind::InvalidInput),
        (resized(1, [65, 2]), ErrorKind::InvalidInput),
        (resized(1, [64, 3]), ErrorKind::Corrupt),
        (resized(0, [0, 64]), ErrorKind::Corrupt),
        (number(f32::NAN), ErrorKind::Corrupt),
        (number(f32::INFINITY), ErrorKind::Corrupt),
        (number(f32::MAX), ErrorKind::Corrupt),
        (named("base_model.model.lm_head.lora_embedding_A"), ErrorKind::Unsupported),
        (named(&format!("base_model.model.{module}.lora_magnitude_vector")), ErrorKind::Unsupported),
        (named(&format!("{module}.lora_A.weight")), ErrorKind::Unsupported),
        (matrices("model.layers.7.self_attn.q_proj", 64, 64, 2), ErrorKind::InvalidInput),
        (matrices("model.layers.0.mlp.up_proj", 128, 64, 2), ErrorKind::Corrupt),
    ] {
        let error = read(&settings(), &tensors).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.context("tensor").is_some(), "{error}");
    }
    // A rank above the room, and another than the settings have.
    let mut wide = settings();
    wide["r"] = json!(5);
    let error = read(&wide, &matrices(module, 64, 64, 5)).unwrap_err();
    assert_eq!((error.kind(), error.context("room")), (ErrorKind::Unsupported, Some("4")));
    let error = read(&wide, &query()).unwrap_err();
    assert_eq!((error.kind(), error.context("field")), (ErrorKind::Corrupt, Some("r")));
    // The embedding and the norms are weights of the model, but no such products.
    let mut norms = settings();
    norms["target_modules"] = json!(["embed_tokens"]);
    let error = read(&norms, &matrices("model.embed_tokens", 256, 64, 2)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

/// What mlx-lm writes.
fn mlx_settings() -> Value {
    json!({
        "fine_tune_type": "lora", "num_layers": 2, "model": "mlx-community/Llama", "iters": 10, "lr_schedule": null,
        "optimizer_config": { "adam": {} }, "trust_remote_code": false, "train": true,
        "lora_parameters": { "rank": 2, "dropout": 0.0, "scale": 3.0 },
    })
}

/// The matrices of PEFT's as mlx-lm has them.
fn mlx_tensors(tensors: &[Tensor]) -> Vec<Tensor> {
    let rename = |name: &str| {
        let name = name.strip_prefix("base_model.model.").unwrap_or(name);
        name.replace(".lora_A.weight", ".lora_a").replace(".lora_B.weight", ".lora_b")
    };
    let turn = |(name, shape, _): &Tensor| {
        let numbers = (0..shape[1]).flat_map(|column| (0..shape[0]).map(move |row| row * shape[1] + column));
        (rename(name), vec![shape[1], shape[0]], numbers.collect::<Vec<_>>())
    };
    let turned = tensors.iter().map(|tensor| (turn(tensor), &tensor.2));
    turned
        .map(|((name, shape, places), numbers)| {
            (name, shape, places.into_iter().map(|place| numbers[place]).collect())
        })
        .collect()
}

fn read_mlx(settings: &Value, tensors: &[Tensor]) -> Result<AdapterWeights> {
    let folder = folder_of(Format::Mlx, settings, tensors);
    let source = ModelSource::from(folder.path());
    AdapterWeights::read(&source, &decoder("llama"), AdapterLimits::new(1, 4))
}

#[test]
fn an_adapter_of_mlx_lm_is_that_of_peft_with_transposed_matrices() {
    let tensors = [query(), matrices("model.layers.0.mlp.down_proj", 64, 128, 2)].concat();
    let peft =
        json!({"peft_type": "LORA", "r": 2, "lora_alpha": 6, "target_modules": ["q_proj", "down_proj"]});
    let expected = read(&peft, &tensors).unwrap();
    let found = read_mlx(&mlx_settings(), &mlx_tensors(&tensors)).unwrap();
    assert_eq!((found.products.len(), found.products == expected.products), (2, true));
    let mut listed = mlx_settings();
    listed["lora_parameters"]["keys"] = json!(["self_attn.q_proj", "mlp.down_proj"]);
    assert_eq!(read_mlx(&listed, &mlx_tensors(&tensors)).unwrap().products, expected.products);
    let wide = mlx_tensors(&matrices("model.layers.0.self_attn.q_proj", 64, 64, 7));
    let folder = folder_of(Format::Mlx, &mlx_settings(), &wide);
    assert_eq!(AdapterWeights::rank(&ModelSource::from(folder.path())).unwrap(), 7);
}

#[test]
fn what_is_not_supported_of_mlx_lm_is_refused_by_name() {
    let tensors = mlx_tensors(&query());
    let refused = |change: &dyn Fn(&mut Value)| {
        let mut settings = mlx_settings();
        change(&mut settings);
        let error = read_mlx(&settings, &tensors).unwrap_err();
        (error.kind(), error.context("field").map(str::to_owned))
    };
    for (field, value) in
        [("fine_tune_type", json!("dora")), ("fine_tune_type", json!("full")), ("use_dora", json!(true))]
    {
        let expected = (ErrorKind::Unsupported, Some(field.to_owned()));
        assert_eq!(refused(&|settings| settings[field] = value.clone()), expected);
    }
    for (field, value, kind) in [
        ("alpha", json!(16), ErrorKind::Unsupported),
        ("rank", json!(3), ErrorKind::Corrupt),
        ("rank", Value::Null, ErrorKind::Corrupt),
        ("scale", Value::Null, ErrorKind::Corrupt),
    ] {
        let (found, named) = refused(&|settings| settings["lora_parameters"][field] = value.clone());
        assert_eq!((found, named.is_some_and(|named| named.ends_with(field))), (kind, true), "{field}");
    }
    assert_eq!(refused(&|settings| settings["lora_parameters"] = Value::Null).0, ErrorKind::Corrupt);
    // The magnitudes of DoRA, and the experts' matrices.
    let magnitude = ("model.layers.1.self_attn.q_proj.m".to_owned(), vec![64], vec![1.0; 64]);
    let error = read_mlx(&mlx_settings(), &[tensors.clone(), vec![magnitude]].concat()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_eq!(error.context("tensor"), Some("model.layers.1.self_attn.q_proj.m"));
}

/// An adapter of the fixtures, read for one of its base models.
fn fixture(name: &str, base: &Decoder) -> Result<AdapterWeights> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/adapters").join(name);
    AdapterWeights::read(&ModelSource::Folder(folder), base, AdapterLimits::new(1, 8))
}

#[test]
fn an_adapter_in_a_gguf_file_is_that_of_peft() {
    let published = decoder("llama");
    let expected = fixture("llama-attention", &published).unwrap();
    let found = fixture("llama-attention-gguf", &published).unwrap();
    assert_eq!((found.products.len(), found.products == expected.products), (6, true));
    assert_ne!(found.identity, expected.identity);
    // The converter's order of rows is that of a base model in a GGUF file.
    let converted = decoder("../formats/gguf-llama-bf16");
    let (paired, own) =
        (fixture("llama-attention", &converted).unwrap(), fixture("llama-attention-gguf", &converted));
    assert_eq!(paired.products, own.unwrap().products);
    let named = |decoder: &Decoder, adapter: &AdapterWeights, name: &str| {
        let found =
            adapter.products.iter().find(|(weight, _)| decoder.weight(**weight).tensor.contains(name));
        found.unwrap().1.clone()
    };
    let values = "layers.0.self_attn.v_proj";
    assert_eq!(named(&published, &expected, values), named(&converted, &paired, values));
    let queries = "layers.0.self_attn.q_proj";
    let [plain, paired] = [named(&published, &expected, queries), named(&converted, &paired, queries)];
    assert_eq!(
        (&plain.a, &plain.b[..4], &plain.b[8 * 4..9 * 4]),
        (&paired.a, &paired.b[..4], &paired.b[4..8])
    );
    // Scales that differ by module are within the matrices.
    let [all, converted] = ["llama-all", "llama-all-gguf"].map(|name| fixture(name, &published).unwrap());
    for (weight, LowRank { rank, a, b }) in &all.products {
        let other = &converted.products[weight];
        assert_eq!((rank, a), (&other.rank, &other.a));
        let close = |(x, y): (&f32, &f32)| (x - y).abs() <= 1e-6 * x.abs();
        assert!(b.iter().zip(&other.b).all(close));
    }
}

#[test]
fn adapters_and_models_in_gguf_files_have_one_architecture() {
    let error = fixture("llama-attention-gguf", &decoder("../formats/gguf-phi3-f32")).unwrap_err();
    assert_eq!((error.kind(), error.context("model")), (ErrorKind::InvalidInput, Some("phi3")));
    // Fused projections that the converter regroups have another order than those of PEFT.
    let module = "gpt_neox.layers.0.attention.query_key_value";
    let target = decoder("../formats/gguf-gptneox-f32");
    let weight = target.weights().find(|weight| module_name(weight) == Some(module)).unwrap();
    let inputs = weight.shape[1];
    let mut settings = settings();
    settings["target_modules"] = json!(["query_key_value"]);
    let error = read_into(&target, &settings, &matrices(module, 3 * inputs, inputs, 2)).unwrap_err();
    assert_eq!((error.kind(), error.context("tensor")), (ErrorKind::Unsupported, Some(module)));
    read_into(&decoder("gpt_neox"), &settings, &matrices(module, 3 * inputs, inputs, 2)).unwrap();
}

/// What merging an adapter of this format into a checkpoint of the fixtures changes.
fn changes(base: &str, format: Format, settings: &Value, tensors: &[Tensor]) -> Result<AdapterChanges> {
    let folder = folder_of(format, settings, tensors);
    let source = ModelSource::from(folder.path());
    let checkpoint =
        Checkpoint::open(Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/architectures").join(base));
    let checkpoint = checkpoint.unwrap();
    AdapterChanges::read(&source, &checkpoint, &checkpoint.decoder().unwrap())
}

#[test]
fn magnitudes_are_merged_as_lengths_of_rows() {
    let module = "model.layers.1.self_attn.q_proj";
    let lengths: Vec<f32> = (0..64).map(|index| 1.0 + index as f32).collect();
    let magnitude = |name: String| (name, vec![64], lengths.clone());
    let mut peft = settings();
    peft["use_dora"] = json!(true);
    let tensors =
        [query(), vec![magnitude(format!("base_model.model.{module}.lora_magnitude_vector"))]].concat();
    let found = changes("llama", Format::Peft, &peft, &tensors).unwrap();
    let change = &found.modules[module];
    let mut row: Vec<f32> = (0..64).map(|index| index as f32 / 64.0).collect();
    change.apply(5, &mut row);
    let length = row.iter().map(|value| value * value).sum::<f32>().sqrt();
    assert!((length - 6.0).abs() < 1e-5, "{length}");
    // The same in mlx-lm's format.
    let mut mlx = mlx_settings();
    mlx["fine_tune_type"] = json!("dora");
    let tensors = [mlx_tensors(&query()), vec![magnitude(format!("{module}.m"))]].concat();
    assert_eq!(changes("llama", Format::Mlx, &mlx, &tensors).unwrap().modules, found.modules);
    // Of a matrix that is stored by inputs there are none.
    let module = "transformer.h.0.attn.c_attn";
    let mut peft = peft.clone();
    peft["target_modules"] = json!(["c_attn"]);
    let width = |name: &str| decoder(name).hidden_size;
    let (outputs, inputs) = (3 * width("gpt2"), width("gpt2"));
    let lengths =
        (format!("base_model.model.{module}.lora_magnitude_vector"), vec![outputs], vec![1.0; outputs]);
    let tensors = [matrices(module, outputs, inputs, 2), vec![lengths]].concat();
    let error = changes("gpt2", Format::Peft, &peft, &tensors).unwrap_err();
    assert_eq!((error.kind(), error.context("tensor")), (ErrorKind::Unsupported, Some(module)));
}

#[test]
fn experts_and_embeddings_run_only_merged() {
    let module = "model.layers.0.mlp.experts.2.up_proj";
    let mut settings = settings();
    settings["target_modules"] = json!(["up_proj"]);
    let tensors = matrices(module, 48, 64, 2);
    let error = read_into(&decoder("qwen3_moe"), &settings, &tensors).unwrap_err();
    assert_eq!((error.kind(), error.context("tensor")), (ErrorKind::Unsupported, Some(module)));
    let found = changes("qwen3_moe", Format::Peft, &settings, &tensors).unwrap();
    assert_eq!(found.modules.keys().collect::<Vec<_>>(), [module]);
    // Those that PEFT has as parameters of several experts.
    let stacked = matrices("model.layers.0.mlp.experts", 64, 48, 16);
    for tensors in [stacked.clone(), [tensors, stacked].concat()] {
        let error = changes("qwen3_moe", Format::Peft, &settings, &tensors).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
    // An embedding and a head that are one matrix cannot be changed apart.
    let head = matrices("lm_head", 256, 64, 2);
    settings["target_modules"] = json!(["lm_head"]);
    for (base, kind) in [("llama", Some(ErrorKind::Unsupported)), ("phi3", None)] {
        let found = changes(base, Format::Peft, &settings, &head).map(drop);
        assert_eq!(found.map_err(|error| error.kind()).err(), kind, "{base}");
        assert_eq!(read_into(&decoder(base), &settings, &head).unwrap_err().kind(), ErrorKind::Unsupported);
    }
}

#[test]
fn missing_files_are_named() {
    let read = |folder: &Path| {
        let source = ModelSource::Folder(folder.to_owned());
        AdapterWeights::read(&source, &decoder("llama"), AdapterLimits::new(1, 4)).unwrap_err()
    };
    for name in [CONFIG, WEIGHTS] {
        let folder = folder(&settings(), &query());
        fs::remove_file(folder.path().join(name)).unwrap();
        let error = read(folder.path());
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.context("path").is_some_and(|path| path.ends_with(name)), "{error}");
    }
    assert_eq!(read(Path::new("no such folder")).kind(), ErrorKind::NotFound);
}

#[test]
fn matrices_are_padded_with_zeros() {
    let product = LowRank { rank: 1, a: vec![1.0, 2.0], b: vec![3.0, 4.0, 5.0] };
    let [a, b] = product.padded(ElementType::F32, 2).unwrap();
    assert_eq!(a, bytes_of(&[1.0, 2.0, 0.0, 0.0]));
    assert_eq!(b, bytes_of(&[3.0, 0.0, 4.0, 0.0, 5.0, 0.0]));
    let [a, _] = product.padded(ElementType::BF16, 1).unwrap();
    assert_eq!(a, [0x80, 0x3f, 0x00, 0x40]);
    let large = LowRank { rank: 1, a: vec![1e5], b: vec![1.0] };
    assert_eq!(large.padded(ElementType::F16, 1).unwrap_err().kind(), ErrorKind::Unsupported);
    large.padded(ElementType::BF16, 1).unwrap();
}
