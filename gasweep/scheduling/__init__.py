"""Which run next, where, and the driver: study, scheduler, backends."""
