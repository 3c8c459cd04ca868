//! Plugins that are loaded and unloaded, of which a later one gets the addresses of an earlier one.

use gpumem_tests::harness::command;
use gpumem_tests::harness::run::Scratch;
use serde_json::Value;
use std::fs;

const PLUGIN: &str = "typedef int alloc(void **, unsigned long);\n\
    __attribute__((noinline)) void NAME_keep(alloc *from) { PADDING for (int i = 0; i < COUNT; i++) { void *p; from(&p, 40960); } }\n\
    void plugin_run(alloc *from) { NAME_keep(from); __asm__ volatile(\"\"); }\n";
const HOST: &str = "#include <dlfcn.h>\n#include <stdio.h>\n#include <stdlib.h>\n\
    static void *use(const char *path, void *from) {\n\
      void *lib = dlopen(path, RTLD_NOW);\n\
      void (*run)(void *) = (void (*)(void *))dlsym(lib, \"plugin_run\");\n\
      run(from);\n\
      dlclose(lib);\n\
      return (void *)run;\n\
    }\n\
    int main(int n, char **v) {\n\
      void *from = dlsym(dlopen(\"libcudart.so.13\", RTLD_NOW), \"cudaMalloc\");\n\
      int same = 0;\n\
      for (int i = 0; i < 3; i++) { char *a = use(v[1], from), *b = use(v[2], from); same += a - b < 4096 && b - a < 4096; }\n\
      printf(\"%d\\n\", same);\n\
      return 0;\n\
    }\n";

/// Each allocation is said to be of the plugin that made it, also after another one came to the same addresses.
#[test]
fn memory_of_an_unloaded_plugin_has_its_call_site() {
    let scratch = Scratch::new();
    let compile = |name: &str, source: &str, options: &[&str]| {
        let (from, to) = (scratch.path().join(format!("{name}.c")), scratch.path().join(name));
        fs::write(&from, source).expect("a source");
        command("cc").args(["-g", "-O1"]).arg(&from).arg("-o").arg(&to).args(options).native().ok();
        to
    };
    let plugin = |name: &str, count: &str, padding: &str| {
        let source = PLUGIN.replace("NAME", name).replace("COUNT", count).replace("PADDING", padding);
        compile(&format!("lib{name}.so"), &source, &["-shared", "-fPIC"])
    };
    let nops = "__asm__ volatile(\"nop; nop; nop; nop\");";
    let (alpha, beta) = (plugin("alpha", "3", ""), plugin("beta", "2", nops));
    let ran = command(compile("host", HOST, &["-ldl"])).arg(&alpha).arg(&beta).preloaded().ok();
    // What other threads map meanwhile may lie there in a round.
    assert_ne!(ran.out.trim(), "0", "the second plugin gets the first one's addresses");
    let rows = ran.ledger().gpumem("allocs", &["--by", "site"]);
    let mut found: Vec<(String, u64)> = rows["rows"].as_array().expect("rows").iter().map(of_site).collect();
    found.sort_unstable();
    assert_eq!(found, [("alpha_keep".to_owned(), 9), ("beta_keep".to_owned(), 6)], "{rows:#}");
}

fn of_site(row: &Value) -> (String, u64) {
    let key = row["key"].as_str().expect("a site");
    (key.split_whitespace().next().unwrap_or_default().to_owned(), row["live"].as_u64().expect("a number"))
}
