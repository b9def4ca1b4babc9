//! Limits as they are asked for and told, and as the engine has them.

use api::SandboxLimits;
use engine::{LimitError, Limits};

use crate::error::ApiError;

/// What was asked for, checked; the published field says no more than this if nothing else does.
pub(crate) fn checked(asked: &SandboxLimits, memory_limit_mib: Option<u64>) -> Result<Limits, ApiError> {
    let failed = |name: &str, error: LimitError| ApiError::invalid(format!("limits: {name}: {error}"));
    macro_rules! limit {
        ($name:ident) => {
            asked.$name.map(TryFrom::try_from).transpose().map_err(|error| failed(stringify!($name), error))?
        };
    }
    let memory = asked.memory_mib.or(memory_limit_mib).map(TryFrom::try_from).transpose();
    Ok(Limits {
        memory: memory.map_err(|error| failed("memory_mib", error))?,
        memory_high: limit!(memory_high_mib),
        swap: limit!(swap_mib),
        cpu: limit!(cpu_millis),
        cpu_weight: limit!(cpu_weight),
        read: limit!(read_mib_per_sec),
        write: limit!(write_mib_per_sec),
        disk: limit!(disk_mib),
        pids: limit!(pids),
    })
}

/// What is told.
pub(crate) fn told(limits: &Limits) -> SandboxLimits {
    SandboxLimits {
        memory_mib: limits.memory.map(Into::into),
        memory_high_mib: limits.memory_high.map(Into::into),
        swap_mib: limits.swap.map(Into::into),
        cpu_millis: limits.cpu.map(Into::into),
        cpu_weight: limits.cpu_weight.map(Into::into),
        read_mib_per_sec: limits.read.map(Into::into),
        write_mib_per_sec: limits.write.map(Into::into),
        disk_mib: limits.disk.map(Into::into),
        pids: limits.pids.map(Into::into),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_what_is_told() {
        let text = r#"{"memory_mib":64,"memory_high_mib":48,"swap_mib":0,"cpu_millis":1500,"cpu_weight":50,
                       "read_mib_per_sec":9,"write_mib_per_sec":8,"disk_mib":7,"pids":99}"#;
        let asked: SandboxLimits = serde_json::from_str(text).unwrap();
        assert_eq!(told(&checked(&asked, Some(32)).unwrap()), asked);
        let published = checked(&SandboxLimits::default(), Some(32)).unwrap();
        assert_eq!(told(&published), SandboxLimits { memory_mib: Some(32), ..SandboxLimits::default() });
        let error = checked(&SandboxLimits { cpu_weight: Some(0), ..asked }, None).unwrap_err();
        assert!(error.message.contains("cpu_weight") && error.message.contains("1 to 10000"), "{}", error.message);
        serde_json::from_str::<SandboxLimits>(r#"{"memroy_mib":64}"#).unwrap_err();
    }
}
