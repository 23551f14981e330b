/// @file
/// Listener: the hub's listening socket, by which it also keeps the name of the job.
#pragma once

#include <dirent.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "parallel_tensor/error.hpp"
#include "parallel_tensor/exchange/meeting_places.hpp"
#include "parallel_tensor/exchange/serialize.hpp"
#include "parallel_tensor/exchange/status.hpp"
#include "parallel_tensor/exchange/wire.hpp"
#include "parallel_tensor/posix/fork.hpp"
#include "parallel_tensor/posix/poll.hpp"
#include "parallel_tensor/posix/socket.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace exchange {

/// Refuses whoever is at the other end of a connection. Does not wait.
inline void send_refusal(const posix::Socket& socket, const std::string& job,
                         const Status& status) {
  Writer writer;
  writer.text(job);
  writer.text(status.kind);
  writer.text(status.message);
  OutgoingMessage(MessageKind::refuse, 0, writer.bytes(), {}).send(socket);
}

/// The hub's listening socket. It keeps the name of the job taken while it lives. Move-only.
class Listener {
 public:
  Listener() noexcept = default;

  /// Listens on the first name that is free or whose owner is none of ours.
  /// @throws ExchangeError when a live job of this user has the name, with its pid
  static Listener bind(const MeetingPlaces& places, const posix::Deadline& deadline) {
    remove_leftovers(places);
    posix::Wait wait(deadline);
    // Long enough for a job that is just ending, or that is between bind and listen.
    const posix::Deadline patience = deadline.at_most(std::chrono::seconds(1));
    while (true) {
      const bool patient = !patience.expired();
      bool again = false;
      for (int i = 0; i < name_count && !again; ++i) {
        Listener listener;
        if (listener.take(places, i)) return listener;
        const Owner owner = owner_of(places.address(i));
        if (owner.kind == OwnerKind::stranger) continue;
        if (owner.kind == OwnerKind::silent && !patient) continue;
        if (owner.kind == OwnerKind::job && !patient) throw_taken(places, owner.pid);
        again = true;
      }
      if (!again) {
        throw ExchangeError("all " + std::to_string(name_count) + " socket names of job '" +
                                places.job() + "' are held by others (" + places.text() +
                                "); give the job another name",
                            "join");
      }
      wait.pause(std::chrono::milliseconds(10));
    }
  }

  Listener(Listener&& other) noexcept { *this = std::move(other); }
  Listener& operator=(Listener&& other) noexcept {
    release();
    socket_ = std::move(other.socket_);
    lock_ = std::exchange(other.lock_, std::nullopt);
    path_ = std::move(other.path_);
    refusal_ = std::move(other.refusal_);
    job_ = std::move(other.job_);
    return *this;
  }
  ~Listener() { release(); }

  int get() const noexcept { return socket_.get(); }
  posix::Socket accept() const { return socket_.accept(); }

  /// What `refuse_all` says from now on.
  void set_refusal(std::string job, Status refusal) {
    job_ = std::move(job);
    refusal_ = std::move(refusal);
  }

  /// Refuses all who wait to be let in. Does not wait.
  void refuse_all() const noexcept {
    try {
      while (const posix::Socket socket = accept()) {
        if (socket.peer().uid == ::geteuid()) send_refusal(socket, job_, refusal_);
      }
    } catch (const std::exception&) {
      // At the descriptor limit they wait on, until their own deadline.
    }
  }

 private:
  enum class OwnerKind { job, stranger, silent };
  struct Owner {
    OwnerKind kind;
    pid_t pid;
  };

  bool take(const MeetingPlaces& places, int i) {
    if (!places.directory().empty()) {
      auto lock = FileLock::try_lock(places.file(i) + ".lock", true);
      // Somebody may have removed the lock of a live job: who answers is alive.
      if (!lock || owner_of(places.address(i)).kind == OwnerKind::job) return false;
      ::unlink(places.file(i).c_str());
      path_ = places.file(i);
      lock_ = std::move(lock);
    }
    socket_ = posix::Socket::create();
    return socket_.listen(places.address(i), 4096);
  }

  static Owner owner_of(const posix::SocketAddress& address) {
    posix::Socket probe = posix::Socket::create();
    const posix::SocketResult result = probe.connect(address);
    if (result == posix::SocketResult::refused) return {OwnerKind::silent, 0};
    if (result != posix::SocketResult::done) return {OwnerKind::stranger, 0};
    const ::ucred owner = probe.peer();
    // A forked child of a dead hub may still hold the name.
    const bool dead = owner.pid > 0 && ::kill(owner.pid, 0) != 0 && errno == ESRCH;
    if (owner.uid != ::geteuid() || dead) return {OwnerKind::stranger, owner.pid};
    return {OwnerKind::job, owner.pid};
  }

  [[noreturn]] static void throw_taken(const MeetingPlaces& places, pid_t pid) {
    throw ExchangeError("another live job of this user is named '" + places.job() +
                            "' on this host; its rank 0 is pid " + std::to_string(pid) +
                            ". Wait for its end, or give this job another name "
                            "(PARALLEL_TENSOR_JOB).",
                        "join");
  }

  /// Removes the files of jobs that were killed.
  static void remove_leftovers(const MeetingPlaces& places) {
    if (places.directory().empty()) return;
    const std::unique_ptr<::DIR, int (*)(::DIR*)> listing(::opendir(places.directory().c_str()),
                                                          &::closedir);
    if (!listing) return;
    while (const ::dirent* entry = ::readdir(listing.get())) {
      const std::string name = entry->d_name;
      const std::string suffix = ".lock";
      if (name.size() <= suffix.size() || !name.ends_with(suffix)) continue;
      const auto lock = FileLock::try_lock(places.directory() + "/" + name, false);
      const std::string socket_name = name.substr(0, name.size() - suffix.size());
      if (!lock || owner_of(places.file_address(socket_name)).kind == OwnerKind::job) continue;
      ::unlink((places.directory() + "/" + socket_name).c_str());
      lock->remove_file();
    }
  }

  void release() noexcept {
    if (lock_ && generation_ == posix::process_generation()) {
      ::unlink(path_.c_str());
      lock_->remove_file();
    }
    lock_.reset();
    socket_.reset();
  }

  posix::Socket socket_;
  std::optional<FileLock> lock_;
  std::string path_;
  std::string job_;
  Status refusal_;
  std::uint64_t generation_ = posix::process_generation();
};

}  // namespace exchange
}  // namespace v1
}  // namespace parallel_tensor
