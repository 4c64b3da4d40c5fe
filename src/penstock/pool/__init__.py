"""The processes of one machine: devices, slots, channel, pipeline, replica, supervisor."""
