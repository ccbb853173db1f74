// Reply: turns the engine's events for the choices of one request into the response, whole or
// streamed.
//
//   reply.feed(choice, event);            // returns the stream's bytes (nothing when not
//   streaming) if (reply.finished()) stream += reply.stream_end();  or  body = reply.whole();
//
// ChatReply and CompletionReply differ in how a choice looks; ids, usage, timings and the order of
// chunks are here. Used on one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/api_error.h"
#include "server/choice_output.h"

namespace tessera::server {

struct ReplyHead {
  std::string id;
  std::int64_t created = 0;
  std::string model;
  std::string fingerprint;
  bool stream = false;
  bool include_usage = false;
};

struct ReplyChoices {
  int all = 1;
  int per_prompt = 1;
  bool keep_tokens = false;
};

class Reply {
 public:
  Reply(ReplyHead head, const ReplyChoices& choices);
  virtual ~Reply() = default;

  std::string feed(int choice, GenerationEvent event);
  bool finished() const { return open_ == 0; }
  std::string stream_end() const;
  Json whole() const;

  Json usage() const;
  const ReplyHead& head() const { return head_; }
  // Tokens of finished choices.
  int prompt_tokens() const;
  int generated_tokens() const;

 protected:
  virtual const char* object_name() const = 0;  // of a whole response or a chunk
  // A choice's part of a chunk. `first`: nothing of this choice was shown before.
  virtual Json chunk_choice(int choice, const OutputSlice& slice, bool first) = 0;
  virtual Json whole_choice(int choice, const OutputSlice& all) const = 0;
  // A look at an event before it is taken apart.
  virtual void inspect(int choice, GenerationEvent& event);
  virtual int counted(const Finish& finish) const { return finish.usage.generated_tokens; }

 private:
  struct Choice {
    ChoiceOutput output;
    OutputSlice all;  // only when not streaming
    bool begun = false;
  };

  Json envelope() const;
  Json timings() const;
  std::string chunk(Json choices) const;
  std::string feed_stream(int choice, OutputSlice slice);

  ReplyHead head_;
  int choices_per_prompt_;
  int open_;
  std::vector<Choice> choices_;
};

const char* openai_finish_reason(FinishReason reason);

// A log-probability as JSON can hold it: -inf becomes -9999.
double finite_logprob(float logprob);

}  // namespace tessera::server
