"""Kinds of nodes: machines of one kind run one recipe, and give the same bits."""

from dataclasses import dataclass


@dataclass(frozen=True)
class NodeFacts:
    """What is known of a machine of a cluster.

    Args:
        python: The version of its Python, without the last number: what is pickled by one may not be read by another.
        penstock: The version of penstock there.
        architecture: As `platform.machine` has it.
        cores: Those that the node may use.
        device_kind: Of the devices that the job runs on there.
        device_name: Of the first of them.
    """

    python: str
    penstock: str
    architecture: str
    cores: int
    device_kind: str
    device_name: str

    @property
    def kind(self) -> str:
        """What decides the recipe, in words. A CPU sums in another order with other registers, or other threads."""
        if self.device_kind == "cpu":
            return f"cpu {self.device_name}, {self.cores} cores, {self.architecture}"
        return f"{self.device_kind} {self.device_name}, {self.architecture}"

    def misfit(self, driver: "NodeFacts") -> str | None:
        """Why a node cannot work for a driver, in words; None where it can."""
        for what, here, there in (
            ("Python", driver.python, self.python),
            ("penstock", driver.penstock, self.penstock),
        ):
            if here != there:
                return f"it has {what} {there}, and the driver {here}"
        return None
