//! Spills and the compiler's own count of resources, from the report that ptxas writes into NVRTC's log.
//!
//! A cubin states a kernel's local memory but not what it is for; only this report tells spilled registers from arrays. NVRTC
//! writes it when given `--ptxas-options=-v`.

use std::collections::BTreeMap;

/// What ptxas reports of one kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PtxasReport {
    /// Registers a thread.
    pub registers: u32,
    /// Barriers of a CTA.
    pub barriers: u32,
    /// Shared memory that the code declares with a size, a CTA.
    pub static_shared_bytes: u32,
    /// Local memory a thread: arrays indexed at run time and spilled registers, of called functions too.
    pub stack_bytes: u32,
    /// Bytes a thread that the code writes to spill registers, called functions included. Counts instructions, not runs.
    pub spill_store_bytes: u32,
    /// Bytes a thread that the code reads back, called functions included.
    pub spill_load_bytes: u32,
}

/// The report of every kernel by its name in the cubin. Lines that are not of the report are passed over, so that a log
/// without one gives an empty map.
pub fn parse_ptxas_log(log: &str) -> BTreeMap<String, PtxasReport> {
    let mut reports: BTreeMap<String, PtxasReport> = BTreeMap::new();
    let mut current = None;
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            current = rest.split_once('\'').map(|(kernel, _)| kernel);
            if let Some(kernel) = current {
                reports.entry(kernel.to_owned()).or_default();
            }
        }
        // Functions that a kernel calls are listed after it under names of their own: they count as part of it.
        let Some(report) = current.and_then(|kernel| reports.get_mut(kernel)) else { continue };
        if line.contains(" bytes stack frame") {
            report.stack_bytes = report.stack_bytes.max(number_before(line, " bytes stack frame"));
            report.spill_store_bytes =
                report.spill_store_bytes.saturating_add(number_before(line, " bytes spill stores"));
            report.spill_load_bytes =
                report.spill_load_bytes.saturating_add(number_before(line, " bytes spill loads"));
        } else if line.contains("Used ") && line.contains(" registers") {
            report.registers = number_before(line, " registers");
            report.barriers = number_before(line, " barriers");
            report.static_shared_bytes = number_before(line, " bytes smem");
            report.stack_bytes = report.stack_bytes.max(number_before(line, " bytes cumulative stack size"));
        }
    }
    reports
}

/// The whole number that stands right before `unit`; 0 if the line has no such figure, which is how ptxas says none.
fn number_before(line: &str, unit: &str) -> u32 {
    let before = line.find(unit).map_or("", |at| &line[..at]);
    let digits = before.bytes().rev().take_while(u8::is_ascii_digit).count();
    before[before.len() - digits..].parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kernel_has_its_own_figures() {
        // NVRTC 13.0.88, sm_80.
        let log = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'light' for 'sm_80'
ptxas info    : Function properties for light
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers, 364 bytes cmem[0]
ptxas info    : Compile time = 1.603 ms
ptxas info    : Compiling entry function 'heavy' for 'sm_80'
ptxas info    : Function properties for heavy
ptxas         .     240 bytes stack frame, 268 bytes spill stores, 260 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 240 bytes cumulative stack size, 4096 bytes smem, 372 bytes cmem[0]
ptxas info    : Compile time = 10.628 ms
";
        let reports = parse_ptxas_log(log);
        assert_eq!(reports.len(), 2);
        assert_eq!(reports["light"], PtxasReport { registers: 8, ..PtxasReport::default() });
        let heavy = PtxasReport {
            registers: 32,
            barriers: 1,
            static_shared_bytes: 4096,
            stack_bytes: 240,
            spill_store_bytes: 268,
            spill_load_bytes: 260,
        };
        assert_eq!(reports["heavy"], heavy);
    }

    #[test]
    fn a_called_function_counts_towards_its_kernel() {
        // NVRTC 13.0.88, sm_90a, with the callee's figures raised: it spilled nothing.
        let log = "\
ptxas info    : Compiling entry function 'calls' for 'sm_90a'
ptxas info    : Function properties for calls
ptxas         .     112 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 30 registers, used 0 barriers, 128 bytes cumulative stack size
ptxas info    : Function properties for _Z1fPfi
ptxas         .     16 bytes stack frame, 16 bytes spill stores, 24 bytes spill loads
";
        let calls = parse_ptxas_log(log)["calls"];
        assert_eq!((calls.registers, calls.stack_bytes), (30, 128));
        assert_eq!((calls.spill_store_bytes, calls.spill_load_bytes), (20, 32));
    }

    #[test]
    fn other_lines_are_passed_over() {
        assert!(parse_ptxas_log("").is_empty());
        let log = "kernel.cu(3): warning #177-D: variable \"registers\" was declared but never referenced\n\
                   ptxas info    : Used 8 registers\nptxas info    : Compiling entry function 'cut";
        assert!(parse_ptxas_log(log).is_empty());
    }
}
