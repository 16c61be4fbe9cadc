//! What a GPU says of itself while it is measured: clocks, temperature, power, what holds it back, and who else uses it.

use crate::store::Conditions;
use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};

/// Readings of one device through NVML. Where the library or a sensor is missing, readings are absent.
#[derive(Debug)]
pub(super) struct Sensors {
    nvml: Option<Nvml>,
    uuid: String,
}

/// Reasons that hold the clocks below what the device would do, with the words for them. Idling and settings are none.
const REASONS: [(ThrottleReasons, &str); 5] = [
    (ThrottleReasons::SW_POWER_CAP, "power cap"),
    (ThrottleReasons::HW_SLOWDOWN, "hardware slowdown"),
    (ThrottleReasons::SW_THERMAL_SLOWDOWN, "temperature (software)"),
    (ThrottleReasons::HW_THERMAL_SLOWDOWN, "temperature (hardware)"),
    (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, "power brake"),
];

impl Sensors {
    /// Of the device with this UUID, as the driver gives its 16 bytes.
    pub(super) fn of(uuid: [u8; 16]) -> Self {
        let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        let uuid =
            format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
        Self { nvml: Nvml::init().ok(), uuid }
    }

    /// The state now.
    pub(super) fn read(&self) -> Conditions {
        let Some(device) = self.nvml.as_ref().and_then(|nvml| nvml.device_by_uuid(self.uuid.as_str()).ok())
        else {
            return Conditions::default();
        };
        let reasons = device.current_throttle_reasons().ok();
        let said = |reasons: ThrottleReasons| {
            let holding = REASONS.iter().filter(|(reason, _)| reasons.contains(*reason));
            holding.map(|(_, words)| *words).collect::<Vec<_>>().join(", ")
        };
        Conditions {
            sm_clock_mhz: device.clock_info(Clock::SM).ok(),
            memory_clock_mhz: device.clock_info(Clock::Memory).ok(),
            temperature_c: device.temperature(TemperatureSensor::Gpu).ok(),
            power_w: device.power_usage().ok().map(|milliwatts| milliwatts / 1000),
            throttled: reasons.map(said).unwrap_or_default(),
        }
    }

    /// The version of the driver.
    pub(super) fn driver(&self) -> Option<String> {
        self.nvml.as_ref()?.sys_driver_version().ok()
    }

    /// Other processes that compute on the device.
    pub(super) fn others(&self) -> usize {
        let own = std::process::id();
        let device = self.nvml.as_ref().and_then(|nvml| nvml.device_by_uuid(self.uuid.as_str()).ok());
        let processes = device.and_then(|device| device.running_compute_processes().ok()).unwrap_or_default();
        processes.iter().filter(|process| process.pid != own).count()
    }
}
