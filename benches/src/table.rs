//! The cases by family, and the bars: how long ours may take, as a share of the anchor's time.

/// A group of cases with one bar.
#[derive(Debug, Clone, Copy)]
pub struct Family {
    /// Its name, usable with `--cases`.
    pub name: &'static str,
    /// Most that one case may take, as a share of the anchor's time; no bar means the case is only reported.
    pub bar: Option<f64>,
    /// Most that the geometric mean of the family may be.
    pub mean_bar: Option<f64>,
    /// Its cases.
    pub cases: &'static [&'static str],
}

/// All families. `gemm_DTYPE_BATCH_M_K_N` is a matrix product.
pub const FAMILIES: &[Family] = &[
    Family {
        name: "indexing",
        bar: Some(1.0),
        mean_bar: Some(0.5),
        cases: &[
            "mask_get_full",
            "mask_get_rows",
            "mask_set_scalar",
            "mask_set_values",
            "idx_get_rows",
            "idx_get_2",
            "idx_get_rows_bwd",
            "put_elem",
            "put_elem_acc",
            "put_rows_acc",
            "put_bwd",
            "slice_copy",
            "slice_set",
            "masked_fill",
            "masked_fill_bwd",
            "gather",
            "scatter_add",
            "transpose_copy",
            "permute_copy",
        ],
    },
    Family {
        name: "norms",
        bar: Some(1.0),
        mean_bar: None,
        cases: &[
            "layer_norm",
            "layer_norm_bwd",
            "rms_norm",
            "rms_norm_bwd",
            "batch_norm",
            "batch_norm_bwd",
            "group_norm",
            "group_norm_bwd",
        ],
    },
    Family { name: "softmax", bar: Some(1.0), mean_bar: None, cases: &["softmax", "softmax_bwd"] },
    Family {
        name: "cross_entropy",
        bar: Some(1.0),
        mean_bar: None,
        cases: &["cross_entropy", "cross_entropy_bwd"],
    },
    Family { name: "adamw", bar: Some(1.0), mean_bar: None, cases: &["adamw_10m", "adamw_10m_40t"] },
    Family {
        name: "elementwise",
        bar: Some(1.0),
        mean_bar: None,
        cases: &[
            "copy16m",
            "add1m",
            "add16m",
            "add16m_out",
            "add_bcast16m",
            "gelu16m",
            "gelu_tanh16m",
            "gelu16m_bwd",
        ],
    },
    Family {
        name: "matmul_f32",
        bar: Some(1.05),
        mean_bar: None,
        cases: &[
            "gemm_f32_1_512_512_512",
            "gemm_f32_1_1024_1024_1024",
            "gemm_f32_1_2048_2048_2048",
            "gemm_f32_1_2048_768_3072",
        ],
    },
    Family {
        name: "matmul_bf16",
        bar: Some(1.25),
        mean_bar: None,
        cases: &[
            "gemm_bf16_1_512_512_512",
            "gemm_bf16_1_1024_1024_1024",
            "gemm_bf16_1_2048_2048_2048",
            "gemm_bf16_1_2048_768_3072",
            "gemm_bf16_16_128_64_128",
        ],
    },
    Family { name: "train", bar: Some(1.0), mean_bar: None, cases: &["train_step", "train_fwd"] },
    Family {
        name: "other",
        bar: None,
        mean_bar: None,
        cases: &[
            "sum16m",
            "sum_dim0",
            "sum_dim1",
            "gemm_f32_16_128_64_128",
            "linear_bwd",
            "sdpa_causal_bwd",
            "small_add_overhead",
            "small_getitem_overhead",
        ],
    },
];

/// The cases named by `wanted`, which holds names of cases and families; all of them when it is empty.
pub fn select(wanted: &[String]) -> Result<Vec<&'static str>, String> {
    for name in wanted {
        if !FAMILIES.iter().any(|f| f.name == name || f.cases.contains(&name.as_str())) {
            let families: Vec<_> = FAMILIES.iter().map(|f| f.name).collect();
            return Err(format!("no case or family `{name}`; the families are {}", families.join(", ")));
        }
    }
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|w| w == name);
    let cases = FAMILIES.iter().flat_map(|f| {
        let whole = is_wanted(f.name);
        f.cases.iter().copied().filter(move |case| whole || wanted.iter().any(|w| w == case))
    });
    Ok(cases.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_selected_by_name_and_by_family() {
        let pick = |names: &[&str]| select(&names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>());
        assert_eq!(pick(&[]).map(|all| all.len()), Ok(60));
        assert_eq!(pick(&["softmax"]), Ok(vec!["softmax", "softmax_bwd"]));
        assert_eq!(pick(&["gather", "adamw"]), Ok(vec!["gather", "adamw_10m", "adamw_10m_40t"]));
        assert!(pick(&["nothing"]).is_err_and(|e| e.contains("`nothing`")));
    }

    #[test]
    fn no_case_is_listed_twice() {
        let mut all: Vec<_> = FAMILIES.iter().flat_map(|f| f.cases).collect();
        all.sort();
        assert!(all.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn the_peer_knows_every_case() {
        let script = include_str!("../peers/torch_worker.py");
        for case in FAMILIES.iter().flat_map(|f| f.cases).filter(|case| !case.starts_with("gemm_")) {
            let stem = case.trim_end_matches("_bwd");
            assert!(script.contains(&format!("'{case}'")) || script.contains(&format!("'{stem}'")), "{case}");
        }
    }
}
