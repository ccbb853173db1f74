#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <memory>

namespace tessera {
namespace {

std::atomic<LogLevel> current_level{LogLevel::info};

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made = spdlog::stderr_color_mt("tessera");
    made->set_pattern("%H:%M:%S.%e %^%l%$ %v");
    made->set_level(spdlog::level::trace);
    return made;
  }();
  return *instance;
}

}  // namespace

void set_log_level(LogLevel level) {
  current_level.store(level, std::memory_order_relaxed);
}

bool log_enabled(LogLevel level) {
  return level >= current_level.load(std::memory_order_relaxed);
}

void log_line(LogLevel level, std::string_view line) {
  switch (level) {
    case LogLevel::debug:
      logger().debug(line);
      break;
    case LogLevel::info:
      logger().info(line);
      break;
    case LogLevel::warn:
      logger().warn(line);
      break;
    case LogLevel::error:
      logger().error(line);
      break;
    case LogLevel::off:
      break;
  }
}

}  // namespace tessera
