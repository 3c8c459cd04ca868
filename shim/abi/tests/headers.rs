//! `headers.py`, run over two small releases that are written here: what it takes of them, and when `--check` fails.

#[path = "../../../tests/src/skipped.rs"]
#[allow(dead_code)] // Other tests use the rest.
mod skipped;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Of each release: its name, and its headers by theirs.
const RELEASES: [(&str, &[(&str, &str)]); 2] = [
    (
        "12.4",
        &[
            (
                "cuda.h",
                r"
#define CUDA_VERSION 12040
/* CUDA_VERSION 11000 was before; cuGone_v9 stands in a comment. */
typedef enum CUgraphNodeType_enum {
    CU_GRAPH_NODE_TYPE_KERNEL = 0, /**< a kernel */
    CU_GRAPH_NODE_TYPE_MEMCPY = 1 // a copy
} CUgraphNodeType;
typedef enum CUgraphInstantiate_flags_enum { CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD = 0x2 } CUgraphInstantiate_flags;
enum CUlaunchAttributeID_enum { CU_LAUNCH_ATTRIBUTE_IGNORE = 0 };
enum CUfunction_attribute_enum { CU_FUNC_ATTRIBUTE_NUM_REGS = 4, CU_FUNC_ATTRIBUTE_MAX };
enum CUpointer_attribute_enum { CU_POINTER_ATTRIBUTE_CONTEXT = 1 };
enum CUgraphDependencyType_enum { CU_GRAPH_DEPENDENCY_TYPE_DEFAULT = 0 };
#define CU_GRAPH_KERNEL_NODE_PORT_DEFAULT 0
CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize);
",
            ),
            (
                "cudaTypedefs.h",
                r"
typedef CUresult (CUDAAPI *PFN_cuMemAlloc_v3020)(CUdeviceptr_v2 *dptr, size_t bytesize);
typedef CUresult (CUDAAPI *PFN_cuMemAlloc_v2000)(CUdeviceptr_v1 *dptr, unsigned int bytesize);
typedef CUresult (CUDAAPI *PFN_cuStreamSynchronize_v7000_ptsz)(CUstream hStream);
// typedef CUresult (CUDAAPI *PFN_cuGone_v1000)(void);
",
            ),
        ],
    ),
    (
        "13.9",
        &[
            (
                "cuda.h",
                r"
#define CUDA_VERSION 13090
typedef enum CUgraphNodeType_enum {
    CU_GRAPH_NODE_TYPE_KERNEL = 0,
    CU_GRAPH_NODE_TYPE_MEMCPY = 1,
    CU_GRAPH_NODE_TYPE_NEW = 30
} CUgraphNodeType;
",
            ),
            (
                "cudaTypedefs.h",
                r"
typedef CUresult (CUDAAPI *PFN_cuMemAlloc_v3020)(CUdeviceptr_v2 *dptr, size_t bytesize);
",
            ),
            ("cudaGL.h", "CUresult CUDAAPI cuGLRun_v3(void);\n"),
            ("cudaGLTypedefs.h", "typedef CUresult (CUDAAPI *PFN_cuGLRun_v13090)(void);\n"),
        ],
    ),
];

/// Lines that `known.rs` must have for these headers. No other name is in it.
const LINES: [&str; 11] = [
    "pub const RELEASES: &[u32] = &[12040, 13090];",
    r#"    ("cuGLRun", &[13090], 3),"#,
    r#"    ("cuMemAlloc", &[2000, 3020], 2),"#,
    r#"    ("cuStreamSynchronize", &[7000], 1),"#,
    r#"    ("KERNEL", 0, 12040),"#,
    r#"    ("NEW", 30, 13090),"#,
    r#"    ("UPLOAD", 2, 12040),"#,
    r#"    ("IGNORE", 0, 12040),"#,
    r#"    ("NUM_REGS", 4, 12040),"#,
    r#"    ("CONTEXT", 1, 12040),"#,
    r#"    ("DEFAULT", 0, 12040),"#,
];

/// The script in a folder of its own, beside the headers.
struct Planted {
    folder: PathBuf,
}

impl Planted {
    fn new(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("headers-{name}-{}", std::process::id()));
        fs::create_dir_all(folder.join("src")).expect("a folder");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("headers.py");
        fs::copy(script, folder.join("headers.py")).expect("the script");
        for (release, headers) in RELEASES {
            fs::create_dir_all(folder.join(release)).expect("a folder");
            for (header, text) in headers {
                fs::write(folder.join(release).join(header), text).expect("a header");
            }
        }
        Self { folder }
    }

    fn known(&self) -> PathBuf {
        self.folder.join("src/known.rs")
    }

    fn run(&self, args: &[&str]) -> Output {
        let script = self.folder.join("headers.py");
        Command::new("python3").arg(script).args(args).current_dir(&self.folder).output().expect("python3 runs")
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn has_python() -> bool {
    skipped::installed("python3").is_some()
}

#[test]
fn the_script_takes_names_and_numbers_of_each_release() {
    if !has_python() {
        return;
    }
    let planted = Planted::new("write");
    let ran = planted.run(&["12.4", "13.9"]);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let made = fs::read_to_string(planted.known()).expect("what it wrote");
    let lines: Vec<&str> = made.lines().collect();
    for line in LINES {
        assert!(lines.contains(&line), "{line} is not in\n{made}");
    }
    // Also MEMCPY, and the other DEFAULT; RELEASES is no row. No name out of a comment.
    let rows = lines.iter().filter(|line| line.starts_with("    (")).count();
    assert_eq!(rows, LINES.len() + 1, "{made}");
    // Whatever order they are named in.
    assert!(planted.run(&["13.9", "12.4"]).status.success());
    assert_eq!(fs::read_to_string(planted.known()).expect("what it wrote"), made);
}

/// The real table has the constants that the script writes, in its words: it was made by this script.
#[test]
fn the_table_here_has_the_form_that_the_script_gives() {
    if !has_python() {
        return;
    }
    let planted = Planted::new("form");
    assert!(planted.run(&["12.4", "13.9"]).status.success());
    let without_rows = |text: String| {
        let lines = text.lines().filter(|line| !line.starts_with("    (") && !line.contains("RELEASES: "));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/known.rs");
    let (here, made) = (fs::read_to_string(here), fs::read_to_string(planted.known()));
    assert_eq!(without_rows(here.expect("the table")), without_rows(made.expect("what it wrote")));
}

#[test]
fn check_tells_what_is_not_as_the_headers_say_and_writes_nothing() {
    if !has_python() {
        return;
    }
    let planted = Planted::new("check");
    assert!(planted.run(&["12.4", "13.9"]).status.success());
    let good = fs::read_to_string(planted.known()).expect("what it wrote");
    let same = planted.run(&["--check", "12.4", "13.9"]);
    assert!(same.status.success(), "{}", String::from_utf8_lossy(&same.stderr));
    for (of, to) in [("(\"NEW\", 30,", "(\"NEW\", 31,"), ("&[2000, 3020]", "&[3020]"), ("[12040, 13090]", "[12040]")] {
        let other = good.replacen(of, to, 1);
        assert_ne!(other, good);
        fs::write(planted.known(), &other).expect("a file");
        let ran = planted.run(&["--check", "12.4", "13.9"]);
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert!(ran.status.code() == Some(1) && said.contains("is not what these headers say"), "{to}: {said}");
        assert_eq!(fs::read_to_string(planted.known()).expect("a file"), other, "--check wrote");
    }
    // Of one release alone it is another table, and without any there is nothing to say.
    fs::write(planted.known(), &good).expect("a file");
    assert_eq!(planted.run(&["--check", "12.4"]).status.code(), Some(1));
    assert_eq!(planted.run(&["--check"]).status.code(), Some(1));
    let half = planted.run(&["13.9"]);
    assert!(String::from_utf8_lossy(&half.stderr).starts_with("these headers have nothing of LAUNCH_ATTRIBUTES"));
    assert_eq!(fs::read_to_string(planted.known()).expect("a file"), good, "it wrote in spite of that");
}
