// SPDX-License-Identifier: Apache-2.0
#include "tests/driver/blocker.h"
#include "tests/driver/emulated_driver.h"

#include <utility>

namespace stillwake {
namespace {

class StreamTest : public EmulatedDriver {};

TEST_F(StreamTest, StreamsAndEventsAreDestroyedOnce) {
  Emulation& emulation = *driver_->emulation();
  const std::uint64_t streams = emulation.live_streams();
  const std::uint64_t events = emulation.live_events();
  {
    Result<OwnedStream> stream = OwnedStream::create(*device_);
    Result<OwnedEvent> event = OwnedEvent::create(*device_);
    ASSERT_TRUE(stream && event);
    EXPECT_EQ(emulation.live_streams(), streams + 1);
    EXPECT_EQ(emulation.live_events(), events + 1);
    OwnedStream moved_stream(std::move(*stream));
    EXPECT_EQ(stream->get(), nullptr);
    OwnedEvent moved_event(std::move(*event));
    EXPECT_FALSE(*event);
    Result<OwnedStream> other = OwnedStream::create(*device_);
    ASSERT_TRUE(other);
    *other = std::move(moved_stream); // the stream that `other` had is destroyed
    EXPECT_EQ(emulation.live_streams(), streams + 1);
    OwnedEvent into;
    into = std::move(moved_event);
    EXPECT_TRUE(static_cast<bool>(into));
    EXPECT_EQ(&into.device(), device_);
    EXPECT_EQ(emulation.live_events(), events + 1);
  }
  EXPECT_EQ(emulation.live_streams(), streams);
  EXPECT_EQ(emulation.live_events(), events);
  EXPECT_TRUE(log().empty());
}

TEST_F(StreamTest, AnEventIsDoneWhenTheWorkBeforeItIs) {
  Result<OwnedStream> stream = OwnedStream::create(*device_);
  Result<OwnedEvent> event = OwnedEvent::create(*device_);
  ASSERT_TRUE(stream && event);
  const ContextScope scope(*device_); // for the calls of the test itself
  Blocker work;
  EXPECT_TRUE(*event->done()) << "never recorded";
  work.hold(table(), stream->get());
  ASSERT_TRUE(event->record(stream->get()));
  EXPECT_FALSE(*event->done());
  work.let_go();
  EXPECT_TRUE(event->synchronize());
  EXPECT_TRUE(*event->done());
  EXPECT_TRUE(stream->synchronize());
}

TEST_F(StreamTest, MakeWaitHoldsAnotherStreamBack) {
  Result<OwnedStream> first = OwnedStream::create(*device_);
  Result<OwnedStream> second = OwnedStream::create(*device_);
  Result<OwnedEvent> before = OwnedEvent::create(*device_);
  Result<OwnedEvent> after = OwnedEvent::create(*device_);
  ASSERT_TRUE(first && second && before && after);
  const ContextScope scope(*device_);
  Blocker work;
  work.hold(table(), first->get());
  ASSERT_TRUE(before->record(first->get()));
  ASSERT_TRUE(before->make_wait(second->get()));
  ASSERT_TRUE(after->record(second->get()));
  EXPECT_FALSE(*after->done());
  work.let_go();
  EXPECT_TRUE(after->synchronize());
}

TEST_F(StreamTest, TimedEventsMeasure) {
  Result<OwnedStream> stream = OwnedStream::create(*device_);
  Result<OwnedEvent> start = OwnedEvent::create(*device_, OwnedEvent::Timing::kOn);
  Result<OwnedEvent> end = OwnedEvent::create(*device_, OwnedEvent::Timing::kOn);
  ASSERT_TRUE(stream && start && end);
  ASSERT_TRUE(start->record(stream->get()) && end->record(stream->get()) && end->synchronize());
  const ContextScope scope(*device_);
  float milliseconds = -1;
  EXPECT_EQ(table().cuEventElapsedTime(&milliseconds, start->get(), end->get()), CUDA_SUCCESS);
  EXPECT_GE(milliseconds, 0.0f);
}

TEST_F(StreamTest, NoEntryTouchesTheCallersContext) {
  Device* mine = *driver_->device(DeviceIndex(1));
  ASSERT_EQ(table().cuCtxPushCurrent(mine->context()), CUDA_SUCCESS);
  {
    Result<OwnedStream> stream = OwnedStream::create(*device_);
    Result<OwnedEvent> event = OwnedEvent::create(*device_);
    ASSERT_TRUE(stream && event);
    EXPECT_TRUE(event->record(stream->get()) && event->make_wait(stream->get()) && event->synchronize());
    EXPECT_TRUE(stream->synchronize());
    EXPECT_EQ(current(), mine->context());
  }
  EXPECT_EQ(current(), mine->context());
  CUcontext popped = nullptr;
  table().cuCtxPopCurrent(&popped);
}

TEST_F(StreamTest, FailuresNameTheCallAndLeaveNothing) {
  Emulation& emulation = *driver_->emulation();
  const std::uint64_t streams = emulation.live_streams();
  arm("cuStreamCreate:1=CUDA_ERROR_OUT_OF_MEMORY");
  const Result<OwnedStream> stream = OwnedStream::create(*device_);
  ASSERT_FALSE(stream);
  EXPECT_EQ(stream.error().code, ErrorCode::kOutOfDeviceMemory);
  EXPECT_STREQ(stream.error().call, "cuStreamCreate");
  EXPECT_EQ(emulation.live_streams(), streams);
  arm("cuEventCreate:1");
  EXPECT_FALSE(OwnedEvent::create(*device_));
  EXPECT_EQ(current(), nullptr);
}

TEST_F(StreamTest, AFailureInADestructorIsLoggedNotThrown) {
  {
    Result<OwnedStream> stream = OwnedStream::create(*device_);
    Result<OwnedEvent> event = OwnedEvent::create(*device_);
    ASSERT_TRUE(stream && event);
    arm("cuStreamDestroy:1=CUDA_ERROR_ILLEGAL_ADDRESS,cuEventDestroy:1=CUDA_ERROR_ILLEGAL_ADDRESS");
  }
  ASSERT_EQ(log().size(), 2u);
  EXPECT_EQ(log()[0].rfind("lost: destroying an event", 0), 0u) << log()[0];
  EXPECT_EQ(log()[1].rfind("lost: destroying a stream", 0), 0u) << log()[1];
}

TEST_F(StreamTest, ALostContextIsToldByItsCode) {
  Result<OwnedEvent> event = OwnedEvent::create(*device_);
  ASSERT_TRUE(event);
  arm("cuEventQuery:1=CUDA_ERROR_LAUNCH_FAILED");
  const Result<bool> done = event->done();
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, ErrorCode::kLost);
}

} // namespace
} // namespace stillwake
