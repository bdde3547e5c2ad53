"""Work begun before its result is asked for."""

import threading

import pytest

from foldmark.errors import NonFiniteValue
from foldmark.surgery.ahead import Ahead, Work, at_once


def test_what_was_begun_is_made_once_and_by_another_thread():
    made = []

    def work():
        made.append(threading.current_thread())
        return len(made)

    with Ahead[int]() as ahead:
        ahead.begin(Work("weight", work))
        ahead.begin(Work("weight", work))
        assert ahead.take(Work("weight", lambda: -1)) == 1
    assert len(made) == 1
    assert made[0] is not threading.current_thread()


def test_what_was_not_begun_is_made_when_it_is_asked_for():
    with Ahead[int]() as ahead:
        ahead.begin(Work("one", lambda: 1))
        assert ahead.take(Work("other", lambda: 2)) == 2


def test_at_once_makes_it_anew_each_time_it_is_asked_for():
    made = []
    work = Work("weight", lambda: made.append(threading.current_thread()))
    assert made == []
    at_once(work)
    at_once(work)
    assert made == [threading.current_thread()] * 2


def test_an_error_is_raised_where_the_result_is_asked_for():
    def work():
        raise NonFiniteValue("a weight is not finite")

    with Ahead[int]() as ahead:
        ahead.begin(Work("weight", work))
        with pytest.raises(NonFiniteValue, match="a weight is not finite"):
            ahead.take(Work("weight", lambda: 0))


def test_leaving_early_drops_what_has_not_begun():
    started, go, made = threading.Event(), threading.Event(), []

    def first():
        started.set()
        go.wait()
        made.append("first")

    def leave(ahead):
        with ahead:
            ahead.begin(Work("first", first))
            ahead.begin(Work("second", lambda: made.append("second")))
            started.wait()
            threading.Timer(0.05, go.set).start()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        leave(Ahead[None]())
    assert made == ["first"]
