//! The page of `gpumem report` in a real browser: it draws, answers to keys, fits a phone, and causes no complaint.
//! Without Chromium these tests are skipped.

mod common;

use common::growth::{dumped, leaking, mark};
use common::recorded::recorded_process;
use common::skipped::one_installed;
use common::*;
use gpumem_inspector::compose::Composer;
use gpumem_wire::kinds::AllocKind;
use gpumem_wire::layout::{AllocSlot, StackSlot};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn browser() -> Option<PathBuf> {
    one_installed(&["chromium", "chromium-browser", "google-chrome"])
}

/// Uses the page as a reader would, and says in its place what came of it.
const USE: &str = r##"
const said = {};
const all = (what) => [...document.querySelectorAll(what)];
const press = (key) => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
const bars = () => all(".fl div").map((bar) => bar.getAttribute("aria-label"));
try {
  said.loaded = performance.getEntriesByType("resource").map((entry) => entry.name);
  said.background = getComputedStyle(document.body).backgroundColor;
  said.overflow = document.documentElement.scrollWidth - innerWidth;
  said.nameless = all("button, select, input").filter((one) => !(one.textContent.trim() || one.getAttribute("aria-label") || one.labels?.length)).length;
  said.heads = all("th:not([scope])").length;
  said.bars = bars();
  const search = document.querySelector("#flame input");
  search.value = "0x201"; search.dispatchEvent(new Event("input"));
  said.found = all(".fl .found").map((bar) => bar.textContent);
  said.share = document.querySelector("#flame .reading").textContent;
  all("#flame button").find((button) => button.textContent === "Inverted").click();
  said.inverted = bars();
  document.querySelector(".fl div[tabindex='0']").focus();
  press("ArrowDown"); said.below = document.activeElement.getAttribute("aria-label");
  press("ArrowRight"); said.beside = document.activeElement.getAttribute("aria-label");
  press("Enter"); said.zoomed = bars().length;
  press("Escape"); said.whole = bars().length;
  const select = document.querySelector("#memory-chart select");
  said.charts = [...select.options].map((option) => option.textContent);
  select.value = "tag"; select.dispatchEvent(new Event("change"));
  said.legend = all("#memory-chart .legend button").map((button) => button.textContent);
  const plot = document.querySelector("#memory-chart [role=img]");
  plot.focus(); press("End"); said.last = document.querySelector("#memory-chart .reading").textContent;
  said.label = plot.getAttribute("aria-label");
  said.areas = all("#memory-chart path").length;
  all("#memory-chart .legend button")[0].click(); said.hidden = all("#memory-chart path").length;
  said.marks = all("#memory-chart .mark-name").map((name) => name.textContent);
  const first = () => document.querySelector("#sites tbody tr td").textContent;
  const head = all("#sites th button")[1];
  head.click(); said.most = first(); head.click(); said.least = first();
  said.sorted = head.parentElement.getAttribute("aria-sort");
  said.drawn = true;
} catch (error) { said.error = String(error.stack); }
said.width = innerWidth;
parent.postMessage(btoa(unescape(encodeURIComponent(JSON.stringify(said)))), "*");
"##;

/// A page that shows another one as wide as a telephone: a window of Chromium's is never narrower than 500 pixels.
fn framed(page: &str, width: u32) -> String {
    format!(
        r#"<!doctype html><body style="margin:0"><script>
        onmessage = (said) => document.body.replaceChildren(Object.assign(document.createElement("pre"), {{ id: "said", textContent: said.data }}));
        </script><iframe style="border:0;width:{width}px;height:900px" src="{page}"></iframe></body>"#
    )
}

/// The page with one more script, which its policy lets run.
fn with_script(page: &str, script: &str) -> String {
    let word = page.split("script nonce=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("a word");
    let with = page.replace("</body></html>", &format!("<script nonce=\"{word}\">{script}</script></body></html>"));
    assert_ne!(with, page);
    with
}

/// A browser without a window, which prints what became of the page that is named behind that.
fn chromium(browser: &Path, dir: &Dir) -> Command {
    let mut command = Command::new(browser);
    command.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]);
    command.args(["--no-first-run", "--disable-background-networking"]).stdin(Stdio::null());
    command.arg(format!("--user-data-dir={}", dir.path().join("profile").display()));
    command
}

/// Uses a page in the browser. Returns the page's report on itself, and the browser's complaints about it.
fn used(browser: &Path, dir: &Dir, page: &str, script: &str, width: u32, dark: bool) -> (Value, Vec<String>) {
    let path = dir.path().join("used.html");
    std::fs::write(&path, with_script(page, script)).unwrap();
    let frame = dir.path().join("frame.html");
    std::fs::write(&frame, framed("used.html", width)).unwrap();
    let mut command = chromium(browser, dir);
    command.arg("--virtual-time-budget=5000");
    command.arg(format!("--window-size={},900", width.max(500)));
    command.arg(format!("--blink-settings=preferredColorScheme={}", u8::from(!dark)));
    let answer = command.arg(format!("file://{}", frame.display())).output().expect("it runs");
    let (dom, log) = (String::from_utf8_lossy(&answer.stdout), String::from_utf8_lossy(&answer.stderr));
    let complaints = log.lines().filter(|line| line.contains("CONSOLE")).map(str::to_owned).collect();
    let said = dom.split("<pre id=\"said\">").nth(1).and_then(|rest| rest.split('<').next());
    let said = said.unwrap_or_else(|| panic!("the page was not used: {log}\n{dom}"));
    (serde_json::from_slice(&unpacked(said)).expect("JSON"), complaints)
}

/// Base64, as the page writes it.
fn unpacked(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut out, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for value in text.bytes().filter_map(|byte| DIGITS.iter().position(|&digit| digit == byte)) {
        (bits, count) = (bits << 6 | value as u32, count + 6);
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
        }
    }
    out
}

fn page(dir: &Dir, evil: &str) -> String {
    let mut composer = leaking(gone(), 120);
    mark(&mut composer, 3, "warm", 60);
    mark(&mut composer, 4, evil, 30);
    let path = dir.path().join("leak.gpumem");
    std::fs::write(&path, dumped(composer).finish()).unwrap();
    dir.ok(&["report", path.to_str().unwrap(), "-o", "-"])
}

fn texts(value: &Value) -> Vec<&str> {
    value.as_array().expect("a list").iter().map(|text| text.as_str().expect("text")).collect()
}

#[test]
fn a_page_can_be_read_with_the_eyes_the_keys_and_a_telephone() {
    let Some(browser) = browser() else { return };
    let dir = dir();
    let evil = "</script><img src=x onerror=console.error(666)>";
    let page = page(&dir, evil);
    for (width, dark) in [(1280, false), (390, true)] {
        let (said, complaints) = used(&browser, &dir, &page, USE, width, dark);
        assert_eq!((&said["error"], &said["drawn"]), (&Value::Null, &true.into()), "{said:#}");
        assert_eq!(complaints, [""; 0], "{width}");
        assert_eq!(said["width"], width);
        assert_eq!(said["loaded"], serde_json::json!([]));
        assert!(said["overflow"].as_i64() <= Some(0), "{width}: {}", said["overflow"]);
        assert_eq!((&said["nameless"], &said["heads"]), (&0.into(), &0.into()));
        assert_eq!(said["background"], if dark { "rgb(13, 17, 23)" } else { "rgb(255, 255, 255)" });
        flame(&said);
        assert_eq!(texts(&said["charts"]), ["call site", "tag"], "no totals were sampled");
        assert_eq!(texts(&said["legend"]), ["cache: 119.0 MiB"]);
        assert!(said["last"].as_str().unwrap().ends_with("119.0 MiB: cache 119.0 MiB"), "{}", said["last"]);
        assert!(said["label"].as_str().unwrap().contains("119.0 MiB at the end"), "{}", said["label"]);
        assert_eq!((&said["areas"], &said["hidden"]), (&1.into(), &0.into()));
        assert_eq!(texts(&said["marks"])[0], "warm");
        assert!(said["most"].as_str().unwrap().contains("0x201"), "{}", said["most"]);
        assert!(!said["least"].as_str().unwrap().contains("0x201"), "{}", said["least"]);
        assert_eq!(said["sorted"], "ascending");
    }
}

/// Opens the first part of a page of several processes as a reader would.
const OPEN: &str = r##"
const said = {};
const all = (what) => [...document.querySelectorAll(what)];
addEventListener("load", () => setTimeout(async () => {
  said.overflow = Math.max(0, document.documentElement.scrollWidth - innerWidth);
  said.closed = all("svg").length;
  document.querySelector("#processes a").click();
  await new Promise((done) => setTimeout(done, 500));
  const part = document.querySelector("details.process[open]");
  said.open = all("details.process[open]").length;
  said.drawn = part.querySelectorAll("svg").length; said.bars = part.querySelectorAll(".fl div").length;
  said.ids = all("[id]").length - new Set(all("[id]").map((one) => one.id)).size;
  said.labels = all("[aria-labelledby]").filter((one) => !document.getElementById(one.getAttribute("aria-labelledby"))).length;
  said.wide = Math.max(0, document.documentElement.scrollWidth - innerWidth);
  parent.postMessage(btoa(unescape(encodeURIComponent(JSON.stringify(said)))), "*");
}, 300));
"##;

/// Each process of a page has a part, which is drawn when it is opened.
#[test]
fn a_page_of_several_processes_opens_each_by_its_link() {
    let Some(browser) = browser() else { return };
    let dir = dir();
    let first = recorded_process(&dir, "r.gz", 100, MIB, 7);
    recorded_process(&dir, "r.101.gz", 101, 2 * MIB, 7);
    let page = dir.ok(&["report", first.to_str().unwrap(), "-o", "-"]);
    for (width, dark) in [(1280, false), (390, true)] {
        let (said, complaints) = used(&browser, &dir, &page, OPEN, width, dark);
        assert_eq!(complaints, [""; 0], "{width}");
        assert_eq!(
            said,
            serde_json::json!({"overflow": 0, "closed": 1, "open": 1, "drawn": 1, "bars": 2, "ids": 0, "labels": 0, "wide": 0}),
            "{width}"
        );
    }
}

fn flame(said: &Value) {
    let bars = texts(&said["bars"]);
    assert_eq!(bars[0], "all: 184.0 MiB, 100 %");
    assert!(bars.contains(&"demo-server+0x901: 184.0 MiB, 100 %"), "{bars:?}");
    assert!(bars.contains(&"demo-server+0x201: 120.0 MiB, 65 %"), "{bars:?}");
    assert_eq!(texts(&said["found"]), ["demo-server+0x201"]);
    assert_eq!(said["share"], "found: 120.0 MiB, 65 % of all");
    // What allocates is on top, and below it who called.
    let inverted = texts(&said["inverted"]);
    assert_eq!(inverted[0], bars[0]);
    assert!(inverted.contains(&"demo-server+0x901: 120.0 MiB, 65 %"), "{inverted:?}");
    assert_eq!(said["below"], "demo-server+0x201: 120.0 MiB, 65 %");
    assert_eq!(said["beside"], "demo-server+0x101: 64.0 MiB, 35 %");
    assert!(said["zoomed"].as_u64() < said["whole"].as_u64(), "{} of {}", said["zoomed"], said["whole"]);
}

/// Reckons as the page does: reads its data once, and makes elements and lays them out.
const MEASURE: &str = r##"
{
const page = performance.now();
const data = [...document.querySelectorAll("script[type='application/json']")].map((data) => data.textContent);
const begun = performance.now();
data.forEach((text) => JSON.parse(text));
for (let turn = 0; turn < 20; turn++) {
  const box = document.body.appendChild(document.createElement("div"));
  for (let n = 0; n < 500; n++) box.appendChild(document.createElement("div")).textContent = n + " of a box";
  box.offsetHeight;
  box.remove();
}
const measure = performance.now() - begun;
const said = { page, measure, bytes: data.reduce((sum, text) => sum + text.length, 0), bars: document.querySelectorAll(".fl div").length };
document.body.append(Object.assign(document.createElement("pre"), { id: "said", textContent: JSON.stringify(said) }));
}
"##;

/// A page with as many call stacks as a large program has answers soon: how long it takes is held against what the same
/// browser needs to read the data and to lay out some elements, so that a busy machine does not count.
#[test]
fn a_large_page_is_drawn_about_as_fast_as_its_data_is_read() {
    let Some(browser) = browser() else { return };
    let dir = dir();
    let path = dir.path().join("large.gpumem");
    std::fs::write(&path, dumped(many_stacks(4_000)).finish()).unwrap();
    let page = dir.ok(&["report", path.to_str().unwrap(), "-o", "-"]);
    let path = dir.path().join("measured.html");
    std::fs::write(&path, with_script(&page, MEASURE)).unwrap();
    let measured = || {
        let mut command = chromium(&browser, &dir);
        let answer = command.arg(format!("file://{}", path.display())).output().expect("it runs");
        let (dom, log) = (String::from_utf8_lossy(&answer.stdout), String::from_utf8_lossy(&answer.stderr));
        assert!(!log.contains("CONSOLE"), "{log}");
        let said = dom.split("<pre id=\"said\">").nth(1).and_then(|rest| rest.split('<').next());
        let said: Value = serde_json::from_str(said.unwrap_or_else(|| panic!("{log}"))).expect("JSON");
        println!("{} bytes of page: {said}", page.len());
        assert!(said["bars"].as_u64() > Some(100), "{said}");
        said["page"].as_f64().unwrap() / said["measure"].as_f64().unwrap()
    };
    // One is enough: what holds up a browser that starts is not the page's. It takes about three times as long.
    assert!((0..3).any(|_| measured() < 12.0));
}

/// Call stacks of 40 frames with an allocation each.
fn many_stacks(stacks: u64) -> Composer {
    let mut composer = leaking(gone(), 120);
    for number in 2..stacks {
        // They part further and further in.
        let frame = |depth: u64| APP + 0x1000 + (number % (41 - depth)) * 0x1000 + depth * 0x10;
        let frames: Vec<u64> = (0..40).map(frame).collect();
        let slot = StackSlot { allocs: 3, alloc_bytes: number * 4096, hash: number, ..Default::default() };
        composer.stack(number as usize, slot, &frames);
        composer.slots([AllocSlot {
            stack: number as u32 + 1,
            addr: 0x6000_0000_0000 + number * 0x1000_0000,
            bytes: 4096 * (1 + number % 500),
            serial: 1_000 + number,
            kind: AllocKind::Device as u8,
            ..Default::default()
        }]);
    }
    composer
}
