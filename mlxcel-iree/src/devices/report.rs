//! Reads the report of IREE's Vulkan driver about a device, which has everything that is known before the
//! device is opened.

use mlxcel_iree_target::VulkanCapability;

use super::DeviceKind;

/// `VkMemoryHeapFlagBits::VK_MEMORY_HEAP_DEVICE_LOCAL_BIT`.
const DEVICE_LOCAL: u64 = 1;

/// A Vulkan device, as its driver reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct VulkanReport {
    pub(super) kind: DeviceKind,
    /// The number of its maker in PCI's list.
    pub(super) maker: u32,
    /// The requirements of IREE's driver that it does not meet.
    pub(super) missing: Vec<String>,
    /// Those that the report lists; the arithmetic in 16 and 64 bits is known once the device is open.
    pub(super) capabilities: Vec<VulkanCapability>,
    pub(super) subgroup_size: u32,
    pub(super) subgroup_sizes: (u32, u32),
    /// The largest heap of the device's own memory, in bytes.
    pub(super) memory_bytes: Option<u64>,
}

impl VulkanReport {
    /// Reads a report; what it lacks is taken to be missing.
    pub(super) fn parse(text: &str) -> Self {
        let mut report = Self::default();
        let mut section = "";
        for line in text.lines() {
            let (key, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.trim();
            if !line.starts_with(' ') {
                section = key;
            }
            match key.trim_start() {
                "type" => report.kind = DeviceKind::of_vulkan(value),
                "vendor_id" => report.maker = hexadecimal(value).unwrap_or_default(),
                "missing" => report.missing.push(value.to_owned()),
                "features" => report.capabilities = capabilities(value),
                "subgroup" => {
                    let number = |name| number(value, name).unwrap_or_default();
                    report.subgroup_size = number("size");
                    report.subgroup_sizes = (number("minSubgroupSize"), number("maxSubgroupSize"));
                }
                _ if section == "memory_heaps" && line.starts_with(' ') => {
                    let local = flags(line).is_some_and(|flags| flags & DEVICE_LOCAL != 0);
                    let bytes = number(line, "size").filter(|_| local);
                    report.memory_bytes = report.memory_bytes.max(bytes);
                }
                _ => {}
            }
        }
        report
    }
}

/// The capabilities that a line of `name=yes` and `name=no` contains.
fn capabilities(line: &str) -> Vec<VulkanCapability> {
    let is_on = |name: &str| matches!(field(line, name), Some("yes" | "true" | "1"));
    [
        ("storageBuffer8BitAccess", VulkanCapability::Storage8),
        ("storageBuffer16BitAccess", VulkanCapability::Storage16),
        ("shaderInt8", VulkanCapability::Int8),
        ("shaderFloat16", VulkanCapability::Float16),
        ("shaderIntegerDotProduct", VulkanCapability::DotProduct),
    ]
    .into_iter()
    .filter(|(name, _)| is_on(name))
    .map(|(_, capability)| capability)
    .collect()
}

/// The value after `name=`.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split_ascii_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

fn hexadecimal(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

fn number<T: std::str::FromStr>(line: &str, name: &str) -> Option<T> {
    field(line, name)?.parse().ok()
}

fn flags(line: &str) -> Option<u64> {
    u64::from_str_radix(field(line, "flags")?.strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read() {
        let report = VulkanReport::parse(
            "name: A card\ntype: discrete-gpu\nfeature_tier[vulkan-1.3]: supported\n\
             features: storageBuffer8BitAccess=no storageBuffer16BitAccess=yes shaderInt8=yes\n\
             vendor_id: 0x1002\n\
             subgroup: size=64 operations=0xff minSubgroupSize=32 maxSubgroupSize=64\n\
             memory_heaps: 3\n  [0] size=268435456 flags=0x00000001\n  [1] size=8589934592 flags=0x00000003\n  [2] size=99000000000 flags=0x00000000\n\
             memory_types: 1\n  [0] heap=2 flags=0x00000001\n",
        );
        assert_eq!((report.kind, report.memory_bytes), (DeviceKind::Discrete, Some(8_589_934_592)));
        assert_eq!((report.maker, report.subgroup_size, report.subgroup_sizes), (0x1002, 64, (32, 64)));
        assert_eq!(report.capabilities, [VulkanCapability::Storage16, VulkanCapability::Int8]);
        assert!(report.missing.is_empty());
    }

    #[test]
    fn requirements_that_are_not_met_are_listed() {
        let report = VulkanReport::parse(
            "type: cpu\nfeature_tier[vulkan-1.3]: unsupported\n  missing: Vulkan API 1.3\n  missing: synchronization2\n",
        );
        assert_eq!(report.missing, ["Vulkan API 1.3", "synchronization2"]);
        assert_eq!((report.kind, report.memory_bytes), (DeviceKind::Software, None));
    }
}
