package peer;

import java.nio.charset.StandardCharsets;
import org.rapidoid.buffer.Buf;
import org.rapidoid.config.Conf;
import org.rapidoid.http.AbstractHttpServer;
import org.rapidoid.http.HttpStatus;
import org.rapidoid.http.HttpUtils;
import org.rapidoid.http.MediaType;
import org.rapidoid.net.TCP;
import org.rapidoid.net.abstracts.Channel;
import org.rapidoid.net.impl.RapidoidHelper;

/**
 * A server on the low-level HTTP of Rapidoid, for measurements. {@code Main PORT} serves /, /json
 * and POST /echo on one worker thread; {@code Main --version} prints the version.
 *
 * <p>Rapidoid echoes a body from memory. At this level it has no other way, and it does not support
 * chunked bodies.
 */
public final class Main extends AbstractHttpServer {

  private static final byte[] HELLO = bytes("Hello, World!");
  private static final byte[] GET = bytes("GET");
  private static final byte[] POST = bytes("POST");
  private static final byte[] ROOT_PATH = bytes("/");
  private static final byte[] JSON_PATH = bytes("/json");
  private static final byte[] ECHO_PATH = bytes("/echo");

  /** The content of {@code /json}, which Rapidoid serialises for every response. */
  public static final class Message {
    public String getMessage() {
      return "Hello, World!";
    }
  }

  private Main() {
    super("Rapidoid", "Not found", "Error", false);
  }

  @Override
  protected HttpStatus handle(Channel channel, Buf buf, RapidoidHelper request) {
    boolean isKeepAlive = request.isKeepAlive.value;
    if (matches(buf, request.verb, GET)) {
      if (matches(buf, request.path, ROOT_PATH)) {
        return ok(channel, isKeepAlive, HELLO, MediaType.TEXT_PLAIN);
      }
      if (matches(buf, request.path, JSON_PATH)) {
        return serializeToJson(HttpUtils.noReq(), channel, isKeepAlive, new Message());
      }
    } else if (matches(buf, request.verb, POST) && matches(buf, request.path, ECHO_PATH)) {
      return ok(channel, isKeepAlive, request.body.bytes(buf), MediaType.BINARY);
    }
    return HttpStatus.NOT_FOUND;
  }

  private static byte[] bytes(String text) {
    return text.getBytes(StandardCharsets.UTF_8);
  }

  public static void main(String[] arguments) {
    if (arguments.length != 1) {
      System.err.println("usage: peer-rapidoid PORT");
      System.exit(2);
    }
    if (arguments[0].equals("--version")) {
      String library = AbstractHttpServer.class.getProtectionDomain().getCodeSource().toString();
      String version = library.replaceAll(".*-([0-9][0-9.]*)\\.jar.*", "$1");
      System.out.println(version + ", JDK " + System.getProperty("java.version"));
      return;
    }
    TCP.server(Conf.HTTP)
        .protocol(new Main())
        .address("127.0.0.1")
        .port(Integer.parseInt(arguments[0]))
        .workers(1)
        .syncBufs(false)
        .build()
        .start();
  }
}
