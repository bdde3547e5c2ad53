"""Run recorded vectors against the catalogue, engine by engine, and count who agrees."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from foldmark.compare.engines import ENGINES, Engine
from foldmark.compare.questions import question_for
from foldmark.compare.vector_file import read_vectors
from foldmark.compare.vectors import Vector, differences
from foldmark.errors import DataMismatch, FoldmarkError

__all__ = ["Disagreement", "EngineCheck", "FileCheck", "check_file", "check_vectors"]


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A vector that an engine answers differently, and how."""

    vector: Vector
    entry: str
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EngineCheck:
    """What one engine made of a file's vectors.

    agree      vectors answered just as the tool did
    differ     the others that it answered
    unanswered ids of vectors whose function the engine does not offer
    """

    engine: str
    agree: int
    differ: tuple[Disagreement, ...]
    unanswered: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FileCheck:
    """What every engine made of a file, and the vectors whose tool nobody knows."""

    path: Path
    count: int
    engines: tuple[EngineCheck, ...]
    unknown: tuple[Vector, ...]

    @property
    def all_agree(self) -> bool:
        """Whether every vector is of a known tool and no engine answered one differently."""
        return not self.unknown and not any(result.differ for result in self.engines)


def check_file(path: Path) -> FileCheck:
    """Put every vector of a file to every engine.

    Raises FileUnreadable, FormatNotRecognised or DataMismatch when the file is not one of vectors.
    """
    vectors = read_vectors(path)
    unknown = tuple(vector for vector in vectors if question_for(vector) is None)
    results = tuple(check_vectors(vectors, engine) for engine in ENGINES)
    return FileCheck(path, len(vectors), results, unknown)


def check_vectors(vectors: Sequence[Vector], engine: Engine) -> EngineCheck:
    """Put every vector of a known tool to one engine.

    Raises DataMismatch for a vector that lacks what its tool's question is asked with.
    """
    agree, differ, unanswered = 0, [], []
    for vector in vectors:
        question = question_for(vector)
        if question is None:
            continue
        function = engine.functions.get(question.function)
        if function is None:
            unanswered.append(vector.id)
            continue
        try:
            found = differences(vector, question.ask(vector, function))
        except FoldmarkError as error:
            found = [error.sentence()]
        except (TypeError, ValueError, IndexError, OverflowError) as error:
            raise DataMismatch(
                f"not a vector of {question.entry}", where=repr(vector.id), got=str(error)
            ) from error
        if found:
            differ.append(Disagreement(vector, question.entry, tuple(found)))
        else:
            agree += 1
    return EngineCheck(engine.name, agree, tuple(differ), tuple(unanswered))
