"""The federation: artifacts and messages, the round loop, a client's step, defenses and malicious clients."""

from typing import TYPE_CHECKING

from fdgsec.runtime.lazy_imports import lazy_names

if TYPE_CHECKING:
    from fdgsec.federation.artifacts import (
        Amplitudes,
        Artifact,
        GeneratorState,
        HeadGradient,
        ImageStyles,
        InterpolationStyle,
        ModelState,
        Prototypes,
        Scores,
        StyleBank,
        StyleDistribution,
        StyleStatistics,
        decode,
    )
    from fdgsec.federation.defense import Defense, Outgoing, Protected, Sender
    from fdgsec.federation.defense_stack import DefenseStack
    from fdgsec.federation.engines.local import LocalEngine
    from fdgsec.federation.engines.state import MemoryStates
    from fdgsec.federation.global_model import Blueprint, GlobalModel
    from fdgsec.federation.malicious_client_protocol import Forges, MaliciousClient
    from fdgsec.federation.method import (
        Client,
        Clock,
        Engine,
        Inbox,
        Method,
        Reply,
        ServerNeeds,
        State,
        Step,
        StepRequest,
        Update,
    )
    from fdgsec.federation.release_declarations import Release
    from fdgsec.federation.released_statistics import MeanSpectra, PooledStyles, ReleasedStatistic, StyleDistributions
    from fdgsec.federation.round_loop import RoundLoop, RoundReport
    from fdgsec.federation.stacked_methods import Stacked
    from fdgsec.federation.wire import SERVER, Filter, Guard, Message, Policy, Receipt, Transcript, Upload, Wire
else:
    __getattr__ = lazy_names(__name__, __file__)

__all__ = [
    "SERVER", "Amplitudes", "Artifact", "Blueprint", "Client", "Clock", "Defense", "DefenseStack", "Engine", "Filter",
    "Forges", "GeneratorState", "GlobalModel", "Guard", "HeadGradient", "ImageStyles", "Inbox", "InterpolationStyle",
    "LocalEngine", "MaliciousClient", "MeanSpectra", "MemoryStates", "Message", "Method", "ModelState",
    "Outgoing", "Policy", "PooledStyles", "Protected", "Prototypes", "Receipt", "Release", "ReleasedStatistic", "Reply",
    "RoundLoop", "RoundReport", "Scores", "Sender", "ServerNeeds", "Stacked", "State", "Step", "StepRequest",
    "StyleBank", "StyleDistribution", "StyleDistributions", "StyleStatistics", "Transcript", "Update", "Upload",
    "Wire", "decode",
]  # fmt: skip
