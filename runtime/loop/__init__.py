"""The decode loop: one step for every device, the scheduler, per-request state on the device."""
