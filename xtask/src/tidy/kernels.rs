//! CUDA kernels that changed since they last ran on a device: each has to be tested there again, or be said to be waiting for it.

use std::fs;
use std::path::Path;

use super::Finding;

/// Beside the kernels: a hash and a name for each file as the last whole self-test of a device ran it; `pending NAME` for one that changed since.
const TESTED: &str = "tested.txt";

/// The hash that compiled kernels are filed under too: FNV-1a with 128 bits.
fn hash(text: &str) -> String {
    let offset = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128;
    let prime = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let all = text.bytes().fold(offset, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(prime));
    format!("{all:032x}")
}

/// Checks one kernel or header against the list beside it.
pub(super) fn check(root: &Path, path: &str, text: &str) -> Vec<Finding> {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    let Ok(list) = fs::read_to_string(root.join(folder).join(TESTED)) else {
        let fix = format!("write {TESTED} from a self-test on a device");
        return vec![Finding::new(path, 1, format!("there is no {TESTED} beside it"), fix)];
    };
    let hash = hash(text);
    let listed = list
        .lines()
        .filter_map(|line| line.split_once(' '))
        .any(|(mark, file)| file.trim() == name && (mark == hash || mark == "pending"));
    match listed {
        true => Vec::new(),
        false => {
            let fix = format!(
                "run the self-test on a device and put `{hash} {name}` into {TESTED}, or `pending {name}`"
            );
            vec![Finding::new(path, 1, "the kernel has changed since it was tested on a device", fix)]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_kernel_is_found_unless_it_is_waiting() {
        let folder = std::env::temp_dir().join(format!("tidy-kernels-{}", std::process::id()));
        fs::create_dir_all(folder.join("k")).unwrap();
        let found = |list: &str| {
            fs::write(folder.join("k").join(TESTED), list).unwrap();
            check(&folder, "k/a.cu", "text").len()
        };
        assert_eq!(hash(""), "6c62272e07bb014262b821756295c58d");
        assert_eq!(found(&format!("{} a.cu\n", hash("text"))), 0);
        assert_eq!(found(&format!("{} a.cu\n", hash("other"))), 1);
        assert_eq!(found(&format!("{} b.cu\n", hash("text"))), 1);
        assert_eq!(found("pending a.cu\n"), 0);
        fs::remove_file(folder.join("k").join(TESTED)).unwrap();
        assert_eq!(check(&folder, "k/a.cu", "text").len(), 1);
        fs::remove_dir_all(folder).unwrap();
    }
}
